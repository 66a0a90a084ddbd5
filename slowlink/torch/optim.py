"""An optimizer for codecs that keep the momentum of gradients themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


class DGCSGD(torch.optim.Optimizer):
    """SGD that adds gradients as they are; weight decay alone has momentum.

    For a codec such as ``dgc``, which corrects momentum before it leaves gradients out: torch's SGD
    would give them momentum twice. Weight decay is dense and known everywhere, so that it does not
    travel and has its momentum here. In these lines g is a parameter's gradient, w its value, λ the
    weight decay and m the momentum::

        u = m u + λ w                 (u = λ w at first)
        w = w - lr (u + g)            with Nesterov: w - lr (λ w + m u + g)

    The DDS document's printed lines, which say the same, forget u after every step.

    Source: DDS document, DGCSGD; Lin et al., Deep Gradient Compression, ICLR 2018, public code.

    Raises
    ------
    ValueError
        A negative number, or ``nesterov`` without momentum.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        defaults = dict(lr=lr, momentum=momentum, weight_decay=weight_decay)
        for name, value in defaults.items():
            if value < 0:
                raise ValueError(f"{name} must not be negative, not {value}")
        if nesterov and not momentum:
            raise ValueError("nesterov needs a momentum above 0")
        super().__init__(params, defaults | dict(nesterov=nesterov))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step by the gradients that are there; returns what ``closure`` does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            momentum = group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                step = parameter.grad
                if group["weight_decay"]:
                    decay = group["weight_decay"] * parameter
                    if momentum:
                        kept = self.state[parameter]
                        moved = kept.setdefault("momentum_buffer", torch.zeros_like(parameter))
                        moved.mul_(momentum).add_(decay)
                        decay = decay.add(moved, alpha=momentum) if group["nesterov"] else moved
                    step = step + decay
                parameter.add_(step, alpha=-group["lr"])
        return loss
