"""What of a package's metadata depends on where the project is published; all else stands in pyproject.toml.

An address is known to whoever makes a release:

    BOUQUET_HOME     the project's page: a homepage, and links to documents and changes
    BOUQUET_FILES    where the files of this release can be read; else $BOUQUET_HOME/blob/v<version>

Without them the description has no links to files, as a page that shows it has not got these.
"""

import os
import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:)([^)#]+)(#[^)]*)?\)")


def description(text: str, files: str) -> str:
    """The text with links to files as addresses below `files`, or as their words alone where that is ""."""
    return _LINK.sub(rf"[\1]({files}/\2\3)" if files else r"\1", text)


def addresses(home: str, files: str) -> dict[str, str]:
    """Names and addresses of the project's pages."""
    if not home:
        return {}
    return {
        "Homepage": home,
        "Documentation": f"{files}/docs/README.md",
        "Changelog": f"{files}/CHANGELOG.md",
    }


if __name__ == "__main__":
    version = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["version"]
    page = os.environ.get("BOUQUET_HOME", "").rstrip("/")
    place = os.environ.get("BOUQUET_FILES", f"{page}/blob/v{version}" if page else "").rstrip("/")
    setup(
        long_description=description((HERE / "README.md").read_text(), place),
        long_description_content_type="text/markdown",
        project_urls=addresses(page, place),
    )
