"""Run a role in this process: pass its messages, keep its membership, end it."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import replace

from slowlink.testbed.live.hips.messages import ADDRESS, Message, Role, Sends, scheduler_of
from slowlink.testbed.live.hips.zmq_transport import ZmqTransport

IDLE_S = 0.05
"""How long to wait for a message before the role gets its next tick."""

SCHEDULERS = ("left", "stop", "members", "epoch")
"""Kinds that only a scheduler's word counts for."""

log = logging.getLogger(__name__)


class Stopped(RuntimeError):
    """The run ended before its time; says why."""


def run(
    role: Role,
    transport: ZmqTransport,
    *,
    start_s: float,
    timeout_s: float,
    leaving: threading.Event | None = None,
) -> None:
    """Take part with ``role``, a worker or server, until told to stop.

    Parameters
    ----------
    transport: must be connected with the role's scheduler.
    start_s: how long to wait for the scheduler at first.
    timeout_s: a scheduler that is silent for longer is lost.
    leaving: once set, the node says good-bye and ends.

    Raises
    ------
    Stopped
        The cluster stopped with an error, or the scheduler is lost.
    """
    try:
        _take_part(role, transport, start_s, timeout_s, leaving or threading.Event())
    except Stopped:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        transport.send(scheduler_of(role.name), Message("failed", body={"reason": reason}))
        raise


def _take_part(
    role: Role, transport: ZmqTransport, start_s: float, timeout_s: float, leaving: threading.Event
) -> None:
    scheduler, life = scheduler_of(role.name), f"{os.getpid()}.{time.time_ns()}"
    epoch, waiting, told = 0, True, False
    others: dict[str, str] = {}
    later: list[Message] = []

    def register() -> None:
        body = dict(node=role.name, address=transport.address, life=life)
        transport.send(scheduler, Message("register", epoch=epoch, body=body))

    def act(sends: Sends) -> bool:
        for destination, message in sends:
            transport.send(destination, message)
        return bool(sends)

    begun = time.monotonic()
    register()
    while True:
        message = transport.receive(0)
        if message is None:
            now, heard = time.monotonic(), transport.heard.get(scheduler)
            allowed = start_s if heard is None else timeout_s
            if now - (heard or begun) > allowed:
                raise Stopped(f"{scheduler} was silent for {allowed:g} s")
            if leaving.is_set():
                transport.send(scheduler, Message("leave"))
                return
            if role.finished and not waiting and not told:
                transport.send(scheduler, Message("done", epoch=epoch))
                told = True
            if waiting or not act(role.tick(now)):
                message = transport.receive(IDLE_S)
        if message is None or message.kind == "heartbeat":
            continue
        if message.kind in SCHEDULERS and message.sender != scheduler:
            log.warning("dropped %s of %s, who is not %s", message.kind, message.sender, scheduler)
        elif message.kind == "left":
            register()
        elif message.kind == "stop":
            if message.body.get("reason"):
                raise Stopped(message.body["reason"])
            return
        elif message.kind == "members":
            if message.epoch > epoch:
                waiting = True
                body = {"rounds": dict(role.rounds)}
                transport.send(scheduler, Message("ready", epoch=message.epoch, body=body))
        elif message.kind == "epoch":
            if message.epoch > epoch:
                epoch, waiting, told = message.epoch, False, False
                body = message.body
                log.info("epoch %d, round %d: %s", epoch, body["round"], body["members"])
                transport.forget(others)
                others = {n: at for n, at in body["addresses"].items() if n != role.name}
                transport.connect(others)
                for its in (message, *later):
                    act(role.on(its))
                later = []
        elif waiting:
            later.append(message)
        else:
            act(role.on(message))


def run_scheduler(role: Role, transport: ZmqTransport) -> None:
    """Be the scheduler ``role`` until the end. Raises Stopped where that comes as an error."""
    addresses: dict[str, str] = {}
    while not role.finished:
        message = transport.receive(IDLE_S)
        if message is None:
            sends = role.tick(time.monotonic())
        else:
            address = message.body.get("address")
            own = message.body.get("node", message.sender) == message.sender
            fits = own and isinstance(address, str) and ADDRESS.match(address)
            if fits and addresses.get(message.sender) != address:
                addresses[message.sender] = address
                transport.connect({message.sender: address})
            sends = role.on(message)
        for destination, its in sends:
            if its.kind == "register" and its.body.get("node") == role.name:
                its = replace(its, body=its.body | {"address": transport.address})
            transport.send(destination, its)
    if role.reason:
        raise Stopped(role.reason)
