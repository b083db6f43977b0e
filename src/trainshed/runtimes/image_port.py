"""The door to container images: whether one can be run on this machine, as the catalog asks before a job is taken."""

from typing import Protocol


class ImagesDoor(Protocol):
    """What this machine can do with container images."""

    def refusal(self, reference: str) -> str:
        """ "" if a program can be run in that image here; else why not and what to do about it, as whole sentences.

        Never blocks: answers from what was found at the start.
        """
        ...
