"""Generated rooms: the receptacles of a scene and their locations.

A scene number stands for a layout, as in the official data (kitchens 1-30, living rooms 201-230, bedrooms 301-330,
bathrooms 401-430), so that games can be played in rooms seen in training, with other things, or in unseen rooms. The
last five scenes of each kind are held out of training.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = ("kitchen", "livingroom", "bedroom", "bathroom")
_FIRST = dict(zip(KINDS, (1, 201, 301, 401), strict=True))
_SCENES, _HELD_OUT = 30, 5
SIZE = (5, 20)  # receptacles in a room

OPENABLE = frozenset({"Fridge", "Cabinet", "Microwave", "Drawer", "Safe"})
_SHARED = 0.1  # probability that a receptacle shares an earlier one's location
_OPEN = 0.1  # probability that an openable one is open at the start

_COMPULSORY = {
    "kitchen": ("CounterTop", "Fridge", "Microwave", "SinkBasin", "GarbageCan"),
    "livingroom": ("Sofa", "CoffeeTable", "SideTable", "GarbageCan"),
    "bedroom": ("Bed", "Desk", "Drawer", "GarbageCan"),
    "bathroom": (
        *("SinkBasin", "Toilet", "CounterTop", "GarbageCan", "Cabinet"),
        *("HandTowelHolder", "TowelHolder", "ToiletPaperHanger"),
    ),
}
_OPTIONAL = {
    "kitchen": {
        **{"CounterTop": 2, "Cabinet": 6, "Drawer": 4, "StoveBurner": 4, "Shelf": 3},
        **{"CoffeeMachine": 1, "Toaster": 1, "DiningTable": 1, "SideTable": 1},
    },
    "livingroom": {
        **{"ArmChair": 2, "Drawer": 4, "Shelf": 4, "Cabinet": 4, "SideTable": 1},
        **{"TVStand": 1, "Dresser": 1, "Ottoman": 1, "DiningTable": 1, "Safe": 1},
    },
    "bedroom": {
        **{"Drawer": 5, "Shelf": 4, "SideTable": 2, "Dresser": 1, "LaundryHamper": 1},
        **{"ArmChair": 2, "Safe": 1, "Desk": 1},
    },
    "bathroom": {"Cabinet": 3, "Drawer": 4, "Shelf": 4, "BathtubBasin": 1, "Cart": 1},
}


@dataclass(frozen=True)
class Receptacle:
    """A piece of furniture: class, id and the id of its location."""

    kind: str
    id: str
    location: str
    opened: bool = False

    @property
    def openable(self) -> bool:
        return self.kind in OPENABLE


@dataclass(frozen=True)
class Room:
    """An empty room. Nothing stands at ``start``."""

    kind: str
    scene: int
    receptacles: tuple[Receptacle, ...]
    start: str

    @property
    def classes(self) -> list[str]:
        return sorted({receptacle.kind for receptacle in self.receptacles})


def scenes(kind: str, held_out: bool) -> range:
    """Returns the scene numbers of a kind of room, those of training or those held out."""
    first = _FIRST[kind]
    border = first + _SCENES - _HELD_OUT
    return range(border, first + _SCENES) if held_out else range(first, border)


def layout(scene: int, size: tuple[int, int] = SIZE) -> Room:
    """Returns the room of a scene number. The same number and bounds always give the same room."""
    kind = next(kind for kind in KINDS if scene in range(_FIRST[kind], _FIRST[kind] + _SCENES))
    rng = random.Random(f"{scene}/{size[0]}/{size[1]}")
    names = Names(rng)
    optional = [cls for cls, most in _OPTIONAL[kind].items() for _ in range(most)]
    rng.shuffle(optional)
    compulsory = _COMPULSORY[kind]
    wanted = max(rng.randint(*size), len(compulsory))
    receptacles: list[Receptacle] = []
    for cls in (*compulsory, *optional)[:wanted]:
        shared = bool(receptacles) and rng.random() < _SHARED
        place = rng.choice(receptacles).location if shared else names.location()
        receptacles.append(Receptacle(cls, names.receptacle(cls), place, cls in OPENABLE and rng.random() < _OPEN))
    return Room(kind, scene, tuple(receptacles), names.location())


class Names:
    """Makes distinct identities in ALFWorld's style."""

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._used: set[str] = set()

    def location(self) -> str:
        rng = self._rng
        return self._fresh(
            lambda: (
                f"loc|{rng.randint(-16, 16)}|{rng.randint(-16, 16)}|{rng.randrange(4)}|{rng.choice((0, 30, 45, 60))}"
            )
        )

    def object(self, cls: str) -> str:
        return self._fresh(lambda: f"{cls}|{self._point()}")

    def receptacle(self, cls: str) -> str:
        if cls in ("SinkBasin", "BathtubBasin"):
            return self._fresh(lambda: f"{cls.removesuffix('Basin')}|{self._point()}|{cls}")
        return self.object(cls)

    def _point(self) -> str:
        rng = self._rng
        return f"{rng.uniform(-4, 4):+06.2f}|{rng.uniform(0, 2):+06.2f}|{rng.uniform(-4, 4):+06.2f}"

    def _fresh(self, draw) -> str:
        while (name := _mangled(draw())) in self._used:
            pass
        self._used.add(name)
        return name


def _mangled(name: str) -> str:
    for sign, word in (("-", "minus"), ("|", "bar"), ("+", "plus"), (".", "dot"), (",", "comma")):
        name = name.replace(sign, f"_{word}_")
    return name
