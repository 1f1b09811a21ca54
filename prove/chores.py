"""What an owner has done to a memory as a whole, in the form of writes: killed half way, all must still be there.

`before` makes what is moved about; it is told by its tags as everything else is. A chore that was cut short is done
again, after which everything is there once.
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
    """Leave plans as older programs wrote them, without front matter."""
    for number in range(3):
        name = f"plan.{tag}.{number}"
        path = os.path.join(memory.root, f"resources/workspaces/default/_plans/260102-{name}.md")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.exists(path):
            with open(f"{path}~", "w", encoding="utf-8") as file:
                file.write(f"{name} {LONG}\n")
            os.rename(f"{path}~", path)  # killed half way, it is not there rather than empty


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
    """Return the tags that a chore's `before` put there."""
    made = {"archive": ("decision", 3), "migrate": ("plan", 3), "demote": ("rule", 1)}
    kind, count = made.get(name, ("happened", 5))
    return [f"{kind}.{tag}.{number}" for number in range(count)]
