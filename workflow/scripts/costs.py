"""What a scale costs, as a table."""

from slowlink.workflow import cost
from slowlink.workflow.experiment import Say


def main(say: Say, scale: str, output: str) -> None:
    made = cost.of_scale(scale)
    say(cost.said(made))
    cost.write(made, output)
