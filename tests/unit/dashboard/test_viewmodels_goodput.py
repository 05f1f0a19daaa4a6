"""What the Goodput page works out it works out once, until what was asked changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboard import viewmodels_goodput as vm
from fleet.curve_fit import StepCurve
from fleet.goodput import EngineModel, advise
from fleet.replay_outcomes import Objectives


def test_advice_is_worked_out_once_for_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = EngineModel(StepCurve(0.01, 0.0005, None, 0.0), 512.0, 128.0, 1e-5, source="typed")
    asked = vm.Asked(model, Objectives(1.0, None, None), 0.95, 16, 8, None, None, None)
    truth = advise(model, asked.objectives, most_batch=16, in_use=8, quantile=0.95)
    calls: list[int] = []

    def counted(*given: object, most_batch: int, **named: object) -> object:
        calls.append(most_batch)
        return advise(*given, most_batch=most_batch, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(vm, "advise", counted)
    vm._advised.cache_clear()
    assert vm.advised(asked) == truth
    # measured demand moves with each question, and is no part of the advice
    assert vm.advised(replace(asked, today_rate=1.5, today_ttft_s=0.2)) is vm.advised(asked)
    assert calls == [16]
    vm.advised(replace(asked, most_batch=12))
    assert calls == [16, 12]
    vm._advised.cache_clear()
