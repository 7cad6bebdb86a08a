"""The engines of a fleet: one in this process, or several in Ray actors.

An actor loads the checkpoint from the same path as this process would, with the contract that it is sent.
Otherwise it needs neither ROS nor any file of the scheduler's machine.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.engine.session import TRAINED, Session, session_of
from vla_accel_ros.fleet.protocol import RobotDescription
from vla_accel_ros.fleet.replicas.local import LocalReplica
from vla_accel_ros.fleet.replicas.ray import RayReplica
from vla_accel_ros.fleet.replicas.ray_cluster import OWN, USUAL, Cluster, Deadlines, Where
from vla_accel_ros.nodes.fleet.contracts import JOINING, contract_of
from vla_accel_ros.nodes.inference.loading import Load, black_frame, trained_state
from vla_accel_ros.types import Observation

Warn = Callable[[str], object]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Making:
    """Makes a replica of a model, in this process or in an actor's. contract: of one of the robots."""

    load: Load
    contract: Contract

    def __call__(self) -> tuple[LocalReplica, Observation]:
        """A replica, and the observation to measure it with. Raises ValueError if something does not fit."""
        engine = self.load.engine(self.contract, _LOG.warning)
        return self.around(engine, _LOG.warning), black_frame(engine, self.contract)

    def around(self, engine: Engine, warn: Warn) -> LocalReplica:
        """A replica around a loaded engine."""

        def own(description: RobotDescription) -> Load:
            return replace(self.load, statistics=description.statistics or self.load.statistics)

        def embody(description: RobotDescription) -> tuple[Contract, Embodiment]:
            contract = contract_of(description)
            with JOINING:
                return contract, own(description).embodiment(engine.policy, contract, warn)

        def session(description: RobotDescription, contract: Contract) -> Session:
            trained = trained_state(engine.runner.robots.of(description.robot).policy)
            return session_of(
                engine,
                {**own(description).settings, **({} if trained is None else {TRAINED: trained.as_lists()})},
                model=self.load.model,
                contract=description.contract,
                urdf=description.urdf,
                topics={picture.name: picture.topic for picture in contract.pictures},
                robot=description.robot,
            )

        return LocalReplica(engine, embody, session=session)


class LocalEngine:
    """One engine in this process. replicas: measured. updates: see LocalReplica."""

    def __init__(self, engine: Engine, making: Making, warn: Warn) -> None:
        self.engine, self._replica = engine, making.around(engine, warn)
        self._replica.measure(black_frame(engine, making.contract))
        self.replicas, self.updates = (self._replica,), self._replica.updates

    def close(self) -> None:
        self._replica.close()


class RayEngines:
    """Engines in Ray actors. wanted, address: the parameters ray_replicas and ray_address. gpus: of this
    machine, for its own cluster.

    Make it in the main thread. replicas: measured, nearest first. They are started one after another, so that
    none is measured while another is loaded beside it. One that does not start is told with its own error and
    tried again, while the others serve. Raises ValueError, with the error of each, if none starts.
    """

    engine = None

    def __init__(
        self, making: Making, wanted: str, address: str = OWN, gpus: int = 0, deadlines: Deadlines = USUAL
    ) -> None:
        wanted_replicas = where(wanted)
        tiers = Counter(location.tier for location, _ in wanted_replicas)
        self.replicas: tuple[RayReplica, ...] = ()
        self._cluster = Cluster(address, tiers, gpus)
        try:
            gpus_each = 1.0 if self._cluster.gpus() and making.load.device != "cpu" else 0.0
            numbers: Counter[str] = Counter()
            failed: list[str] = []
            for location, has_gpus in wanted_replicas:
                name = f"{location.tier}{numbers[location.tier]}"
                numbers[location.tier] += 1
                location = location if has_gpus else replace(location, gpus=gpus_each)
                replica = RayReplica(name, making, location, deadlines)
                self.replicas += (replica,)
                if (error := replica.ready.exception()) is not None:
                    failed.append(f"replica {name}: {error}")
                    _LOG.warning("%s; it is tried again, the others serve", failed[-1])
            if len(failed) == len(self.replicas):
                raise ValueError("; ".join(failed))
            self.updates = max(replica.updates for replica in self.replicas)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()
        self._cluster.close()


Engines = LocalEngine | RayEngines


def where(wanted: str) -> list[tuple[Where, bool]]:
    """Parse ray_replicas: where each replica runs, and whether its GPUs are given. Raises ValueError."""
    replicas = []
    for word in wanted.split():
        tier, count, gpus, network = (*word.split(":", 3), "", "", "")[:4]
        try:
            number, share = int(count or 1), float(gpus or 0.0)
            network_s = float(network) if network else None
            if not tier.isidentifier() or not 1 <= number <= 64 or not 0.0 <= share <= 64.0:
                raise ValueError
            if not 0.0 <= (network_s or 0.0) <= 60.0:
                raise ValueError
        except ValueError:
            raise ValueError(
                f"ray_replicas has {word!r}; give TIER:COUNT, TIER:COUNT:GPUS or TIER:COUNT:GPUS:NETWORK_S, "
                "such as edge:1 cloud:2:0.5:0.04"
            ) from None
        replicas += [(Where(tier, share, network_s=network_s), bool(gpus))] * number
    if not replicas:
        raise ValueError("ray_replicas names no replica; give one, such as edge:1")
    return replicas
