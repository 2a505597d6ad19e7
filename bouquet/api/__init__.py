"""What a notebook or a script does with bouquet; all of it is named in `bouquet` itself."""
