"""What each queueing model takes and answers: names, kinds and an example, read off the models themselves.

Pure. Prevents: a list of parameters beside the code that no longer is the code's.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.errors import InvalidInput
from fleet.queueing import MODELS, Number, Params

_DONE = 0.5  # an arrival rate below one server's rate of 1: every model answers there


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a model."""

    name: str
    kind: str  # "number >= 0" | "number > 0" | "whole number >= 1" | "list of numbers > 0"
    is_optional: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}{', optional' if self.is_optional else ''})"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a model takes and answers. A quantity ending in * takes a number in its place: Wq_p99."""

    name: str
    parameters: tuple[Parameter, ...]
    quantities: tuple[str, ...]

    @property
    def takes(self) -> str:
        """Return the parameters in a line: "lam (number > 0), mu (number > 0), c (whole number >= 1)"."""
        return ", ".join(str(p) for p in self.parameters)


class _Recorder(Params):
    """Answers every question with a small number and remembers what was asked."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked: dict[str, Parameter] = {}

    def _note(self, name: str, kind: str, *, is_optional: bool = False) -> None:
        self.asked.setdefault(name, Parameter(name, kind, is_optional))

    def number(self, name: str, *, low: float = 0.0, default: Number = None) -> float:
        self._note(name, f"number >= {low:g}", is_optional=default is not None)
        return (
            _DONE if name in ("lam", "rho", "a", "p_wait_target") else 1.0 if default is None else default
        )

    def positive(self, name: str) -> float:
        self._note(name, "number > 0")
        return self.number(name)

    def count(self, name: str, *, low: int = 0) -> int:
        self._note(name, f"whole number >= {low}")
        return low

    def rates(self, name: str) -> list[float]:
        self._note(name, "list of numbers > 0, highest precedence first")
        return [_DONE if name == "lam" else 1.0]


def model_card(name: str) -> ModelCard:
    """Return the card of a model. Raises InvalidInput with the names there are."""
    build = MODELS.get(name)
    if build is None:
        raise InvalidInput(
            f"no model is called {name[:40]!r}", field="model", hint=f"Models: {', '.join(MODELS)}"
        )
    recorder = _Recorder()
    quantities = build(recorder)
    return ModelCard(name, tuple(recorder.asked.values()), tuple(quantities))


def model_cards() -> list[ModelCard]:
    """Return the cards of all models, in the order of the registry."""
    return [model_card(name) for name in MODELS]
