"""Man pages of the commands, made of their parsers: ``python man_pages.py FOLDER``, as `make wheel` does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from argparse_manpage.manpage import Manpage

from chopper_interop import __version__, cli


def page(prog: str) -> str:
    """Return the man page of a command."""
    parser = cli.PARSERS[prog]()
    about = re.split(r"\.(?:\s|$)", parser.description or "")[
        0
    ]  # the first sentence, as apropos lists it
    examples, parser.epilog = (parser.epilog or "").partition("\n")[2], None
    data = {
        "prog": prog,
        "project_name": f"chopper-interop {__version__}",
        "manual_title": "Profiles of GPU training jobs",
        "description": about[:1].lower() + about[1:],
    }
    others = ", ".join(f".BR {name} (1)" for name in cli.PARSERS if name != prog)
    others = others.replace(", ", " ,\n")
    escaped = examples.rstrip().replace("\\", "\\e").replace("-", "\\-")
    return f"{str(Manpage(parser, _data=data)).rstrip()}\n.SH EXAMPLES\n.nf\n{escaped}\n.fi\n.SH SEE ALSO\n{others}\n"


def write(folder: Path) -> None:
    """Write the man pages of all commands into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for prog in cli.PARSERS:
        (folder / f"{prog}.1").write_text(page(prog), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
