"""The list of targets in ``docs/targets.md``, from what the wings declare.

python -m slowlink.workflow.targets > docs/targets.md
"""

from __future__ import annotations

from collections.abc import Iterator

from slowlink.reports import claims
from slowlink.workflow.settings import wings
from slowlink.workflow.wing import Wing

HEAD = """# Targets

`snakemake --cores 2 <target>` makes one figure or table with all that it needs, as
`results/<scale>/<document>/figures/<name>.svg` or `…/tables/<name>.csv`. The name of a document
makes all of its figures and tables, `verdicts` a verdict for every claim, `data` fetches all data
sets, and no name at all everything with the report.
`python -m slowlink.workflow.targets` makes this list.
"""


def listed() -> str:
    """The whole list."""
    return "\n".join([HEAD, *(line for wing in wings().values() for line in _lines(wing))])


def _lines(wing: Wing) -> Iterator[str]:
    label = claims.about(wing.claims).label if wing.claims else wing.name.capitalize()
    yield f"## {label}: `{wing.name}`\n"
    yield "| target | shows |"
    yield "|---|---|"
    for target, names in wing.targets.items():
        titles = dict.fromkeys(wing.shown[name].title for name in names)
        yield f"| `{wing.name}_{target}` | {'; '.join(titles)} |"
    for one in wing.experiments.values():
        if one.optional:
            about = (one.function.__doc__ or "").partition("\n")[0]
            yield f"| `{wing.name}_{one.name}` | {about} Runs only when it is asked for. |"
    yield ""


if __name__ == "__main__":
    print(listed(), end="")
