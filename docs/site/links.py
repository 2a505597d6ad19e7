"""Links of the pages that leave docs: the site has no such files, so a link becomes the file's path.

The pages are read in a checkout, too, where these links work.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """MkDocs calls this with the text of every page."""
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def plain(link: re.Match[str]) -> str:
        path = inside(folder / link["target"])
        if ":" in link["target"] or path is None or path.parts[0] == "docs":
            return link[0]
        if not Path(config["config_file_path"]).parent.joinpath(path).exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {path}, which does not exist.")
        return f"{link['text']} (`{path}`)"

    return _LINK.sub(plain, markdown)


def inside(path: PurePosixPath) -> PurePosixPath | None:
    """A path without "..", from the repository's root; None if it leaves the repository."""
    parts: list[str] = []
    for part in path.parts:
        if part != "..":
            parts.append(part)
        elif not parts:
            return None
        else:
            parts.pop()
    return PurePosixPath(*parts)
