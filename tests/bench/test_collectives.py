"""Reading collectives out of HLO text, in each way that it writes groups of devices."""

import pytest

from jaxengine.bench.collectives import Collective, collectives

MESH = {"data": 2, "kv": 2, "group": 2}
REDUCE = "  %psum.1 = f32[4,64]{1,0} all-reduce(%x), channel_id=1, "


@pytest.mark.parametrize(("groups", "axes"), [
    ("replica_groups=mesh['data'=2,'kv'=2,'group'=2] {'kv','group'}, to_apply=%add", ("kv", "group")),
    ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}, to_apply=%add", ("kv", "group")),
    ("replica_groups=mesh['a'=2,'b'=2,'c'=2], device_ids=([2,2,2]T(2,1,0)) {'a'}, to_apply=%add", ("group",)),
    ("replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add", ("kv", "group")),
    ("replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add", ("group",)),
    ("replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add", ("data",)),
    ("replica_groups=[2,4]<=[8], to_apply=%add", ("kv", "group")),
    ("replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add", ("data",)),
    ("replica_groups=[4,2]<=[2,2,2]T(0,2,1), to_apply=%add", ("kv",)),
    ("replica_groups={}, to_apply=%add", ("data", "kv", "group")),
])
def test_groups_become_mesh_axes(groups: str, axes: tuple[str, ...]):
    assert collectives(REDUCE + groups, MESH) == [Collective("all-reduce", "f32", 4 * 64 * 4, axes)]


@pytest.mark.parametrize(("line", "expected"), [
    ("%g = bf16[4,3,2]{2,1,0} all-gather(%x), replica_groups=[2,4]<=[8], dimensions={0}", ("all-gather", "bf16", 48)),
    ("%t = (f32[1,128]{1,0}, f32[1,128]{1,0}) all-to-all(%a, %b), replica_groups=[4,2]<=[8]",
     ("all-to-all", "f32", 1024)),
    ("%s = (f32[2,8]{1,0}, f32[4,8]{1,0}) all-gather-start(%x), replica_groups=[4,2]<=[8]", ("all-gather", "f32", 128)),
    ("%r = f8e4m3fn[16]{0} reduce-scatter(%x), replica_groups=[4,2]<=[8]", ("reduce-scatter", "f8", 16)),
    ("ROOT %p = s32[3]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0},{2,3},{3,2}}",
     ("collective-permute", "s32", 12)),
])
def test_kinds_and_bytes(line: str, expected: tuple[str, str, int]):
    (found,) = collectives(f"  {line}\n", MESH)
    assert (found.kind, found.dtype, found.num_bytes) == expected


def test_uses_of_a_result_are_not_collectives():
    text = "%f = f32[4]{0} fusion(%all-reduce.1), calls=%c\n%d = f32[4]{0} all-reduce-done(%all-reduce-start.2)\n"
    assert collectives(text, MESH) == []
