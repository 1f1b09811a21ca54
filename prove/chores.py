"""An owner's commands that change many records, in the form of writes: after a kill, every record must still exist.

`before` makes the records that the command moves; they are found by their tags, like all others. An interrupted command
is repeated, and then every record must exist once.
"""

from __future__ import annotations

import os

import holdfast
from holdfast.memories import upkeep
from prove.writes import LONG, Write

Memory = holdfast.Memory


def _entries(memory: Memory, tag: str) -> None:
    for number in range(3):
        name = f"decision.{tag}.{number}"
        fields = {"date": f"20{20 + number}-01-02"}
        memory.put("decision", f"{name} {LONG}", title=name, fields=fields, op_id=f"{name}-before")


def _old_plans(memory: Memory, tag: str) -> None:
    """Write plans as older programs did, without front matter."""
    for number in range(3):
        name = f"plan.{tag}.{number}"
        path = os.path.join(memory.root, f"resources/workspaces/default/_plans/260102-{name}.md")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.exists(path):
            with open(f"{path}~", "w", encoding="utf-8") as file:
                file.write(f"{name} {LONG}\n")
            os.rename(f"{path}~", path)  # a kill must not leave an empty file


def _migrate(memory: Memory, _tag: str) -> object:
    return upkeep.apply(memory, upkeep.plan_changes(memory, status="new"))


def _happened(memory: Memory, tag: str) -> None:
    for number in range(5):
        name = f"happened.{tag}.{number}"
        memory.mind("mind").append("episodic", f"{name} {LONG}", f"{name}-before")


def _rule(memory: Memory, tag: str) -> None:
    name = f"rule.{tag}.0"
    memory.put("rule", f"{name} {LONG}", id=f"agent/rules/common/{tag}.md", op_id=f"{name}-before")


CHORES: dict[str, Write] = {
    "rebuild": Write(lambda memory, _: memory.refresh(rebuild=True), _happened),
    "compact": Write(lambda memory, _: memory.mind("mind").compact("episodic", keep_last=2), _happened),
    "archive": Write(lambda memory, _: upkeep.archive(memory, keep=1), _entries),
    "migrate": Write(_migrate, _old_plans),
    "demote": Write(lambda memory, tag: memory.hot.demote(tag, op_id=tag), _rule),
}


def made_by(name: str, tag: str) -> list[str]:
    """Return the tags that the `before` of a command makes."""
    made = {"archive": ("decision", 3), "migrate": ("plan", 3), "demote": ("rule", 1)}
    kind, count = made.get(name, ("happened", 5))
    return [f"{kind}.{tag}.{number}" for number in range(count)]
