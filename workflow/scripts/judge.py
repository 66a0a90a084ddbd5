"""A verdict for every claim of a document, with all that its page says of it."""

from slowlink.testbed.files import whole
from slowlink.workflow.experiment import Say
from slowlink.workflow.settings import wing_of
from slowlink.workflow.verdicts import judge_from


def main(say: Say, wing: str, files: list[str], recipe: dict, scale: str, output: str) -> None:
    judged, _ = judge_from(wing_of(wing), files, recipe, scale)
    say(judged["verdict"].value_counts().to_string())
    with whole(output) as path:
        judged.to_parquet(path, index=False)
