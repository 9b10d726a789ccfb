"""A plan with all that is known about it."""

from __future__ import annotations

from dataclasses import dataclass

from lumc.profile.records import Records, Setting
from lumc.schedule.plan import Plan
from lumc.search.space import Space


@dataclass(frozen=True)
class Evidence:
    """A plan with what was found beside it; what is missing is said in ``missing``."""

    name: str  # of the file, without its folder and suffix
    plan: Plan
    space: Space | None
    space_file: str
    records: Records
    missing: tuple[str, ...]

    @property
    def setting(self) -> Setting | None:
        return self.records.setting if self.records.setting.device else None
