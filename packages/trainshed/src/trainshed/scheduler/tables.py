"""A dict of which a copy costs next to nothing: what it holds is copied only once it is changed."""

from typing import Protocol, Self, TypeVar


class _Copied(Protocol):
    def copy(self) -> Self: ...


K = TypeVar("K")
V = TypeVar("V", bound=_Copied)


class Table(dict[K, V]):
    """Its copies have the same values, until one of them wants to change a value: only what `own` returns may
    be changed. So a copy can be read in another thread meanwhile."""

    __slots__ = ("_owned",)

    def __init__(self) -> None:
        super().__init__()
        #: Keys of the values that no copy has.
        self._owned: set[K] = set()

    def own(self, key: K) -> V:
        """Return a value in order to change it."""
        value = self[key]
        if key not in self._owned:
            value = self[key] = value.copy()
        return value

    def copy(self) -> "Table[K, V]":
        made = Table[K, V]()
        made.update(self)
        self._owned.clear()
        return made

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self._owned.add(key)

    def __delitem__(self, key: K) -> None:
        super().__delitem__(key)
        self._owned.discard(key)
