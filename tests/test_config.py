from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import config
from harness.config import (
    Scenario,
    build_cluster,
    build_tiers,
    load_network,
    load_scenario,
    load_topology,
    read_yaml,
    scenario_from_json,
)
from harness.errors import InputError
from harness.run import cell_digest
from harness.types import TierFacts

LAB = """\
name: lab
topology: {use: fat-tree, tor_oversubscription: 2, agg_oversubscription: 2}
cluster:
  gpus_per_instance: 4
  placement: {use: prefill-racks, racks: 1}
  memory_per_gpu: 80GB
  weights_per_instance: 140GB
  memory_reserve: 0.1
model: {name: llama-3-70b, layers: 80, kv_heads: 8, head_dim: 128, bytes_per_element: 2}
workload: {use: rag, rate_scale: 2}
requests: 20
serving: paper
schedulers: [rr, {use: cla, w_load: 3}]
slo: {ttft: 4s}
quick: {requests: 5, schedulers: [cla], seeds: 1, workload: {rate_scale: 1}}
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A minimal scenario in the current directory."""
    monkeypatch.chdir(tmp_path)
    path = Path("lab.yaml")
    path.write_text(LAB)
    return path


def refusal(*args: Any, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_scenario(*args, **options)
    return str(caught.value)


def with_line(path: Path, old: str, new: str) -> Path:
    assert LAB.count(old) == 1
    path.write_text(LAB.replace(old, new))
    return path


# --- What a scenario holds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rag", "chatbot", "long-context"])
def test_scenarios_of_the_project_load_in_both_forms(name: str) -> None:
    full, quick = load_scenario(name), load_scenario(name, quick=True)
    assert full.name == name
    assert full.seeds == (1, 2, 3)
    assert [s.use for s in full.schedulers] == ["rr", "cla-tuned", "netkv-topo", "netkv-static", "netkv-full"]
    assert [s.use for s in quick.schedulers] == ["rr", "cla-tuned", "netkv-full"]
    assert quick.seeds == (1,)
    assert quick.requests < full.requests


def test_rag_is_the_experiment_of_the_paper() -> None:
    scenario = load_scenario("rag")
    cluster = build_cluster(scenario)
    assert (scenario.requests, load_scenario("rag", quick=True).requests) == (200, 40)
    # 2 x 80 layers x 8 heads x 128 x 2 bytes
    assert scenario.model.kv_bytes_per_token == 327_680
    # (4 x 80 GB - 140 GB) x 0.9
    assert scenario.cluster.kv_memory_bytes == 162 * 10**9
    assert (cluster.prefill, len(cluster.decode)) == ((0, 1, 2, 3), 12)
    assert build_tiers(scenario, cluster) == TierFacts(
        (3600 * 10**9, 100 * 10**9, 50 * 10**9, 25 * 10**9), (10**6, 3 * 10**6, 8 * 10**6, 15 * 10**6)
    )
    assert scenario.background.params["share"] == {"2": 0.05, "3": 0.05}
    assert scenario.network.profile == "roce-default"


def test_a_sweep_is_not_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\nscenario: rag\n")
    with pytest.raises(InputError, match=r"s.yaml: is a sweep, which `netkv-cosim sweep` runs"):
        load_scenario(path)


@pytest.mark.parametrize(
    ("preset", "prefill_racks", "instances"), [("paper-64", 1, 16), ("paper-256", 4, 64), ("paper-1024", 16, 256)]
)
def test_paper_presets_have_the_same_tiers_at_every_size(preset: str, prefill_racks: int, instances: int) -> None:
    scenario = load_scenario("rag", overrides=[f"topology={preset}", f"cluster.placement.racks={prefill_racks}"])
    cluster = build_cluster(scenario)
    assert len(cluster.instances) == instances
    assert 4 * len(cluster.prefill) == instances
    assert build_tiers(scenario, cluster).bandwidth_bps == (3600 * 10**9, 100 * 10**9, 50 * 10**9, 25 * 10**9)
    assert build_tiers(scenario, cluster).latency_ps == (10**6, 3 * 10**6, 8 * 10**6, 15 * 10**6)


@pytest.mark.parametrize(("preset", "hosts"), [("k-ary-4", 16), ("leaf-spine-64", 8), ("k-ary", 16), ("paper-64", 8)])
def test_presets_and_builders_as_topologies_of_their_own(preset: str, hosts: int) -> None:
    assert [node.kind for node in load_topology(preset).nodes].count("host") == hosts


def test_defaults_of_a_minimal_scenario(lab: Path) -> None:
    scenario = load_scenario(lab)
    assert scenario.oracle.use == "sampled"
    assert scenario.background.use == "none"
    assert scenario.backends == ("packet",)
    assert scenario.seeds == (1,)
    assert scenario.network == load_network("roce-default")
    assert scenario.slo.tbt is None
    assert scenario.slo.ttft == 4 * 10**12


def test_json_and_digest_round_trip() -> None:
    scenario = load_scenario("rag", overrides=["cluster.tier_bandwidth.2=10Gbps", "topology.tor_oversubscription=4"])
    again = scenario_from_json(json.loads(json.dumps(scenario.to_json())))
    assert again == scenario
    assert Scenario.model_validate(scenario.to_json()) == scenario
    assert again.digest() == scenario.digest()
    assert scenario.digest() != load_scenario("rag").digest()
    assert len(scenario.digest()) == 64


def test_digest_does_not_depend_on_how_a_value_is_written(lab: Path) -> None:
    before = load_scenario(lab).digest()
    assert load_scenario(with_line(lab, "140GB", "140000MB")).digest() == before


def test_overridden_tiers_reach_the_oracle_and_not_the_network(lab: Path) -> None:
    plain = load_scenario(lab)
    wrong = load_scenario(lab, overrides=["cluster.tier_bandwidth.2=10Gbps", "cluster.tier_latency={3: 1ms}"])
    cluster = build_cluster(wrong)
    assert cluster.topology == build_cluster(plain).topology
    assert build_tiers(wrong, cluster).bandwidth_bps[2] == 10 * 10**9
    assert build_tiers(wrong, cluster).latency_ps[3] == 10**9


def test_striping_over_all_nics_multiplies_the_bandwidth_that_the_oracle_knows(lab: Path) -> None:
    overrides = ["topology.nics_per_instance=4", "network.transport.striping=per-rank"]
    one, four = load_scenario(lab, overrides=overrides[:1]), load_scenario(lab, overrides=overrides)
    assert build_tiers(one, build_cluster(one)).bandwidth_bps[1] == 100 * 10**9
    assert build_tiers(four, build_cluster(four)).bandwidth_bps[1] == 400 * 10**9


# --- Overrides --------------------------------------------------------------------------------------------------------


def test_values_of_overrides_are_yaml(lab: Path) -> None:
    scenario = load_scenario(
        lab,
        overrides=[
            "requests=7",
            "prefix_hit_shortens_prefill=true",
            "slo={ttft: 2s, tbt: 50ms}",
            "seeds=[4, 9]",
            "oracle.interval=250ms",
            "background={use: poisson, share: {2: 0.1}}",
            "background.share.3=1e-2",
            "schedulers.1.w_load=5",
        ],
    )
    assert scenario.requests == 7
    assert scenario.prefix_hit_shortens_prefill is True
    assert (scenario.slo.ttft, scenario.slo.tbt) == (2 * 10**12, 5 * 10**10)
    assert scenario.seeds == (4, 9)
    assert scenario.oracle.params["interval"] == 25 * 10**10
    assert scenario.background.params["share"] == {"2": 0.1, "3": 0.01}
    assert scenario.schedulers[1].params["w_load"] == 5.0


def test_network_keys_lie_over_the_profile() -> None:
    scenario = load_scenario("rag", overrides=["network.profile=roce-paper", "network.cc.g=0.5"])
    paper = load_network("roce-paper")
    assert scenario.network.cc.g == 0.5
    assert scenario.network.cc.increase_timer == paper.cc.increase_timer
    assert scenario.network.switch.ecn == paper.switch.ecn


def test_network_may_be_the_name_of_a_profile() -> None:
    assert load_scenario("rag", overrides=["network=roce-paper"]).network == load_network("roce-paper")


@pytest.mark.parametrize("order", [1, -1])
def test_another_component_drops_the_old_ones_keys_but_not_new_overrides(lab: Path, order: int) -> None:
    overrides = ["workload.use=mooncake", "workload.path=trace.jsonl"][::order]
    scenario = load_scenario(lab, overrides=overrides)
    assert scenario.workload.use == "mooncake"
    assert scenario.workload.params["path"] == "trace.jsonl"
    assert scenario.workload.params["rate_scale"] == 1.0  # the file's 2 was rag's


def test_naming_the_same_component_keeps_its_keys(lab: Path) -> None:
    assert load_scenario(lab, overrides=["workload.use=rag"]).workload.params["rate_scale"] == 2.0


def test_keys_below_a_component_that_is_only_named(lab: Path) -> None:
    scenario = load_scenario(lab, overrides=["topology=paper-64", "topology.nic_rate=200Gbps", "serving.max_batch=8"])
    assert scenario.topology.params["nic_rate"] == 200 * 10**9
    assert scenario.topology.params["name"] == "paper-64"
    assert scenario.serving.params["max_batch"] == 8


def test_options(lab: Path) -> None:
    scenario = load_scenario(lab, requests=3, schedulers=["ca", "cla"], seeds=2, backend="both", fluid="tier")
    assert scenario.requests == 3
    assert scenario.seeds == (1, 2)
    assert scenario.backends == ("packet", "fluid")
    assert scenario.fluid == "tier"
    assert [s.use for s in scenario.schedulers] == ["ca", "cla"]
    assert scenario.schedulers[1].params["w_load"] == 3.0  # as the file says


def test_a_block_is_set_before_the_keys_in_it(lab: Path) -> None:
    scenario = load_scenario(
        lab, schedulers=["ca", "cla"], overrides=["schedulers.1.w_load=7", "slo.tbt=2s", "slo={ttft: 1s}"]
    )
    assert scenario.schedulers[1].params["w_load"] == 7.0
    assert (scenario.slo.ttft, scenario.slo.tbt) == (10**12, 2 * 10**12)


def test_quick_lies_between_file_and_options(lab: Path) -> None:
    scenario = load_scenario(lab, quick=True, overrides=["requests=6"])
    assert (scenario.requests, scenario.workload.params["rate_scale"]) == (6, 1.0)
    assert [s.params["w_load"] for s in scenario.schedulers] == [3.0]


def test_instance_size_reaches_the_topology(lab: Path) -> None:
    cluster = build_cluster(load_scenario(lab, overrides=["cluster.gpus_per_instance=8"]))
    assert len(cluster.instances) == 8
    assert {instance.gpus for instance in cluster.instances} == {8}


def test_an_alias_is_a_block_of_its_own(lab: Path) -> None:
    with_line(
        lab, "schedulers: [rr, {use: cla, w_load: 3}]", "schedulers: [&a {use: cla, w_load: 3}, {<<: *a, w_cache: 2}]"
    )
    scenario = load_scenario(lab, overrides=["schedulers.0.w_load=4"])
    assert [s.params["w_load"] for s in scenario.schedulers] == [4.0, 3.0]


# --- Topologies from files --------------------------------------------------------------------------------------------


def test_a_topology_file_of_the_users_own(lab: Path) -> None:
    Path("my.yaml").write_text("use: leaf-spine\nleaves: 2\n")
    scenario = load_scenario(lab, overrides=["topology=my.yaml", "topology.spines=2"])
    assert (scenario.topology.use, scenario.topology.params["spines"]) == ("leaf-spine", 2)


def test_a_topology_file_may_build_on_a_preset(lab: Path) -> None:
    Path("my.yaml").write_text("use: paper-64\nname: mine\n")
    scenario = load_scenario(lab, overrides=["topology=my.yaml"])
    assert (scenario.topology.use, scenario.topology.params["name"]) == ("fat-tree", "mine")
    assert scenario.topology.params["tor_oversubscription"] == 2


def test_mistakes_in_a_topology_file_name_that_file(lab: Path) -> None:
    Path("my.yaml").write_text("use: leaf-spine\nleafs: 2\n")
    message = refusal(lab, overrides=["topology=my.yaml"])
    assert message.startswith("my.yaml: leafs: unknown key 'leafs'; did you mean 'leaves'? Allowed: leaves, spines,")
    Path("my.yaml").write_text("use: ./my.yaml\n")
    assert refusal(lab, overrides=["topology=./my.yaml"]).endswith("my.yaml names itself")


HPCC = "6 2 5\n4 5\n0 4 100Gbps 1us 0\n1 4 100Gbps 1us 0\n2 5 100Gbps 1us 0\n3 5 100Gbps 1us 0\n4 5 100Gbps 1us 0\n"


def test_text_topology_of_the_hpcc_family(lab: Path) -> None:
    Path("lab.topo.txt").write_text(HPCC)
    cluster = build_cluster(load_scenario(lab, overrides=["topology=lab.topo.txt"]))
    assert (cluster.prefill, cluster.decode) == ((0, 1), (2, 3))
    assert cluster.tier(0, 2) == 2
    assert load_topology("lab.topo.txt") == cluster.topology


def test_disconnected_topology(lab: Path) -> None:
    Path("lab.topo.txt").write_text(HPCC.replace("6 2 5", "6 2 4").replace("4 5 100Gbps 1us 0\n", ""))
    assert refusal(lab, overrides=["topology=lab.topo.txt"]) == (
        "topology lab.topo.txt: no path from host0 to host2; every two hosts must be connected through switches"
    )


# --- Mistakes ---------------------------------------------------------------------------------------------------------

KEYS = (
    "name, topology, cluster, model, workload, requests, warmup_share, serving, block_tokens, "
    "prefix_hit_shortens_prefill, layer_groups, decision_at, schedulers, oracle, background, network, backend, fluid, "
    "fluid_background, fluid_oracle, slo, "
    "link_sampling, trace_ports, trace_interval, pcap, pcap_payload, seeds"
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("requests: 20", "request: 20", f"request: unknown key 'request'; did you mean 'requests'? Allowed: {KEYS}"),
        ("requests: 20", "requests: -3", "requests: given -3: must be greater than or equal to 1"),
        ("requests: 20", 'requests: "20"', "requests: given '20': must be a whole number"),
        ("requests: 20", "requests: 2.5", "requests: given 2.5: must be a whole number"),
        ("requests: 20", "requests: true", "requests: given True: must be a whole number"),
        ("slo: {ttft: 4s}\n", "", "slo: is required and missing"),
        (
            "topology: {use: fat-tree, tor_oversubscription: 2, agg_oversubscription: 2}\n",
            "",
            "topology: is required and missing",
        ),
        ("ttft: 4s", "ttft: 0s", "slo.ttft: given 0: must be greater than 0"),
        ("ttft: 4s", "tfft: 4s", "slo.tfft: unknown key 'tfft'; did you mean 'ttft'? Allowed: ttft, tbt"),
        (
            "[rr,",
            "[netkv-ful,",
            (
                "schedulers.0.use: unknown scheduler 'netkv-ful'; did you mean 'netkv-full'? Allowed: rr, ca, cla, "
                'cla-tuned, netkv-topo, netkv-static, netkv-full, replay, or "module:Class"'
            ),
        ),
        ("[rr,", "[rr, rr,", "schedulers.1: 'rr' is listed twice"),
        ("w_load: 3", "w_lod: 3", "schedulers.1.w_lod: unknown key 'w_lod'; did you mean 'w_load'? Allowed: "),
        ("w_load: 3", "w_load: -3", "schedulers.1.w_load: -3.0 given; "),
        ("rate_scale: 2", "rate_scale: -1", "workload.rate_scale: -1.0 given; "),
        (
            "tor_oversubscription: 2",
            "nic_rate: -1Gbps",
            "topology.nic_rate: '-1Gbps' is negative; allowed: a rate in bits per second, such as \"400Gbps\", ",
        ),
        ("tor_oversubscription: 2", "cores: 7", "topology.cores: given 7: must be a multiple of aggs_per_pod, 4"),
        (
            "memory_reserve: 0.1",
            "instances: 17",
            "cluster.instances: given 17: topology fat-tree has 64 GPUs, room for 16 instances of 4 GPUs",
        ),
        (
            "memory_reserve: 0.1",
            "instances: 0",
            "cluster.instances: given 0: must be 'all' or a whole number, at least 1",
        ),
        (
            "racks: 1",
            "racks: 4",
            "cluster.placement.racks: given 4: must leave a rack to decode; the instances stand in 4",
        ),
        ("memory_reserve: 0.1", "memory_reserve: 1", "cluster.memory_reserve: given 1: must be less than 1"),
        (
            "140GB",
            "320GB",
            "cluster.weights_per_instance: given 320GB: must leave room in the 320GB of an instance (4 x 80GB)",
        ),
        (
            "bytes_per_element: 2",
            "bytes_per_element: 0.00001",
            "model.bytes_per_element: given 1e-05: a token's KV cache must come to a whole number of bytes",
        ),
        (
            "requests: 20",
            "requests: 20\nfluid: maxmn",
            "fluid: unknown fluid model 'maxmn'; did you mean 'maxmin'? Allowed: ",
        ),
        (
            "requests: 20",
            "requests: 20\nlayer_groups: 81",
            "layer_groups: given 81: must not exceed the model's 80 layers",
        ),
        ("requests: 20", "requests: 20\nbackend: ns3", "backend: given 'ns3': must be 'packet', 'fluid' or 'both'"),
        (
            "requests: 20",
            "requests: 20\nseeds: [1, 1]",
            "seeds: given [1, 1]: must be a number of repetitions, at least 1, or a list of different seeds >= 0",
        ),
        (
            "requests: 20",
            "requests: 20\nnetwork: {cc: {gg: 1}}",
            "network.cc.gg: unknown key 'gg'; did you mean 'g'? Allowed: use, header, attributes, ",
        ),
        (
            "requests: 20",
            "requests: 20\nnetwork: {cc: {min_rate: 0bps}}",
            "network.cc.min_rate: given '0bps': must be greater than 0",
        ),
        (
            "requests: 20",
            'requests: 20\nnetwork: {cc: {attributes: {G: "1\\n2"}}}',
            r"network.cc.attributes.G: given '1\n2': must match pattern '^[^\n]*$'",
        ),
        ("requests: 20", "requests: 20\nnetwork: {cc: 3}", "network.cc: given 3: must be a block of keys"),
        (
            "requests: 20",
            "requests: 20\nnetwork: {switch: {ecn: {kmin: 900KB}}}",
            "network.switch.ecn: kmin is 900000 bytes, must not exceed kmax (400000 bytes)",
        ),
        (
            "requests: 20",
            "requests: 20\nnetwork: roce-papr",
            "network.profile: unknown profile 'roce-papr'; did you mean 'roce-paper'? Allowed: ",
        ),
        ("name: lab", "name: ../lab", "name: given '../lab': must match pattern "),
        ("requests: 20", "requests: 20\nrequests: 30", "line 12: the key 'requests' stands twice"),
        ("requests: 20", "requests: [20", "line 12: expected ',' or ']', but got ':'"),
        ("requests: 20", "requests: 20\n? [a]\n: 3", "line 12: a key must be text or a whole number"),
        ("requests: 20", "requests: 1e999", "line 11: 1e999 is too large a number"),
        (
            "requests: 20",
            "requests: !!python/object:os.system x",
            "line 11: could not determine a constructor for the tag ",
        ),
        ("requests: 20", "requests: &a [*a]", "is nested more than 50 deep"),
    ],
)
def test_mistakes_in_the_file(lab: Path, old: str, new: str, message: str) -> None:
    said = refusal(with_line(lab, old, new))
    assert said.startswith(f"lab.yaml: {message}")
    # A message that is given here to its end has nothing after it; only lists of names may grow.
    assert said == f"lab.yaml: {message}" or message[-1] == " "


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("netwrk.cc.g=1", f"netwrk: unknown key 'netwrk'; did you mean 'network'? Allowed: {KEYS}"),
        ("network.cc.g=2", "network.cc.g: given 2: must be less than or equal to 1"),
        (
            "network.switch.pfc.xoff=1MB",
            "network.switch.pfc: give either dynamic_shift or xoff (with xon), not both and not none",
        ),
        ("workload.use=mooncake", "workload.path: is required by workload 'mooncake' and missing"),
        (
            "cluster.instances=17",
            "cluster.instances: given 17: topology fat-tree has 64 GPUs, room for 16 instances of 4 GPUs",
        ),
        (
            "cluster.gpus_per_instance=3",
            "cluster.gpus_per_instance: 3 GPUs per instance do not divide the 8 GPUs of a server",
        ),
        ("topology.gpus_per_instance=8", "cluster.gpus_per_instance: given 4: the topology's instances have 8 GPUs"),
        ("oracle.cluster=1", "oracle.cluster: is set by the run (harness.types.Cluster) and cannot be configured"),
        ("schedulers.2=rr", "schedulers.2: the list has no entry 2; it has 0 to 1"),
        ("requests.x=3", "requests: is 20, which has no keys"),
        ("requests", "must be key.path=value, for example network.profile=roce-paper"),
        ("requests..x=3", "must be key.path=value, for example network.profile=roce-paper"),
        ("requests=[", "line 1: expected the node content, but found '<stream end>'"),
        ("topology=absent.yaml", "topology: there is no file 'absent.yaml'; beside it are lab.yaml"),
    ],
)
def test_mistakes_in_an_override_name_it(lab: Path, override: str, message: str) -> None:
    expected = f"--set {override}: {message}"
    if override.startswith("topology.gpus"):  # two keys that disagree: the message names the other one
        expected = f"lab.yaml: {message}"
    assert refusal(lab, overrides=["slo.tbt=1s", override]) == expected


def test_the_last_of_two_overrides_counts_and_is_blamed(lab: Path) -> None:
    assert load_scenario(lab, overrides=["requests=0", "requests=5"]).requests == 5
    said = refusal(lab, overrides=["requests=5", "requests=0"])
    assert said == "--set requests=0: requests: given 0: must be greater than or equal to 1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"requests": 0}, "--requests 0: requests: given 0: must be greater than or equal to 1"),
        ({"backend": "ns3"}, "--backend ns3: backend: given 'ns3': must be 'packet', 'fluid' or 'both'"),
        (
            {"schedulers": ["rr", "lab:X"]},
            "--schedulers rr,lab:X: schedulers.1.use: cannot load scheduler 'lab:X': No module named 'lab'",
        ),
    ],
)
def test_mistakes_in_an_option_name_it(lab: Path, options: dict[str, Any], message: str) -> None:
    assert refusal(lab, **options) == message


def test_files_that_hold_no_scenario(lab: Path) -> None:
    assert refusal("rga") == (
        "unknown scenario 'rga'; did you mean 'rag'? Allowed: chatbot, long-context, paper-chatbot, "
        "paper-long-context, paper-rag, rag, or the path of a file"
    )
    assert refusal("absent.yaml") == "there is no file 'absent.yaml'; beside it are lab.yaml"
    lab.write_text("# nothing\n")
    assert refusal(lab) == "lab.yaml: is empty"
    lab.write_text("- a\n")
    assert refusal(lab) == "lab.yaml: must hold a block of keys, not list"
    lab.write_bytes(b"name: \xff\n")
    assert refusal(lab).startswith("lab.yaml: cannot be read: 'utf-8' codec can't decode byte 0xff")
    lab.write_text("name: \x07\n")
    assert refusal(lab).startswith("lab.yaml: not YAML: unacceptable character #x0007")


def test_quick_may_change_keys_of_a_component_that_is_only_named_or_another_component(lab: Path) -> None:
    with_line(lab, "workload: {rate_scale: 1}}", "serving: {max_batch: 4}, workload: {documents: 3, use: chatbot}}")
    scenario = load_scenario(lab, quick=True)
    assert (scenario.serving.use, scenario.serving.params["max_batch"]) == ("paper", 4)
    params = scenario.workload.params
    assert (scenario.workload.use, params["documents"], params["rate_scale"]) == ("chatbot", 3, 1.0)


def test_quick_needs_a_quick_block(lab: Path) -> None:
    lab.write_text(LAB.partition("quick:")[0])
    assert refusal(lab, quick=True) == "lab.yaml: quick: must be a block of the keys that a quick run changes"


def test_network_alone() -> None:
    settings = load_network("hpcc-sim", overrides=["cc.increase_timer=900us"], payload_bytes=4096)
    assert settings.cc.increase_timer == 900 * 10**6
    assert settings.transport.payload_bytes == 4096
    for options, message in (
        ({"overrides": ["cc.g=5"]}, "--set cc.g=5: network.cc.g: given 5: must be less than or equal to 1"),
        (
            {"payload_bytes": 1},
            "--payload 1: network.transport.payload_bytes: given 1: must be greater than or equal to 64",
        ),
        ({"profile": "x.yaml"}, "--profile x.yaml: network.profile: there is no file 'x.yaml'"),
    ):
        with pytest.raises(InputError) as caught:
            load_network(**options)  # type: ignore[arg-type]
        assert str(caught.value).startswith(message)


def test_a_profile_of_the_users_own_is_checked_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    shipped = (Path(config.__file__).parent / "packet" / "profiles" / "roce-default.yaml").read_text()
    path.write_text(shipped)
    assert load_network(str(path)).cc == load_network("roce-default").cc
    path.write_text(shipped + "extra: 1\n")
    with pytest.raises(InputError, match=r"own\.yaml: network\.extra: unknown key 'extra'"):
        load_network(str(path))


@pytest.mark.parametrize("kind", ["scenario", "topology", "profile"])
def test_every_preset_says_in_its_first_line_what_it_is(kind: Any) -> None:
    found = config.presets(kind)
    assert found
    assert all(line for _, line in found)


# --- YAML -------------------------------------------------------------------------------------------------------------


def test_yaml_is_the_json_part_of_version_1_2(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("on: yes\na: 1e9\nb: 010\nc: 1:30\nd: 2020-01-01\ne: ~\nf: .5\n2: true\ng: -3\nh: .nan\n")
    assert read_yaml(path) == {
        "on": "yes",
        "a": 1e9,
        "b": "010",
        "c": "1:30",
        "d": "2020-01-01",
        "e": None,
        "f": 0.5,
        2: True,
        "g": -3,
        "h": ".nan",
    }


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.from_regex("[a-z]{1,4}", fullmatch=True), below, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.from_regex("[a-z]{1,4}", fullmatch=True), JSON_VALUES, min_size=1, max_size=4))
def test_json_is_read_as_json(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "value.yaml"
    path.write_text(json.dumps({f"k{key}": value for key, value in data.items()}))
    assert read_yaml(path) == {f"k{key}": value for key, value in data.items()}


def test_a_fluid_model_can_be_given_a_background_and_an_oracle_of_its_own() -> None:
    known = ["fluid_background={use: constant, share: {3: 0.1}}", "fluid_oracle={use: constant, congestion: {3: 0.1}}"]
    scenario = load_scenario("rag", overrides=known)
    packet, fluid = scenario.of("packet"), scenario.of("fluid")
    assert (packet.background.use, packet.oracle.use) == ("poisson", "sampled")
    assert (fluid.background.params["share"], fluid.oracle.params["congestion"]) == ({"3": 0.1}, {"3": 0.1})
    assert load_scenario("rag").of("fluid").background.use == "poisson"
    # A cell is what it runs, however that was said.
    said = load_scenario("rag", overrides=[text.removeprefix("fluid_") for text in known])
    assert cell_digest(scenario, "fluid", scenario.schedulers[0], 1) == cell_digest(
        said, "fluid", said.schedulers[0], 1
    )
    assert cell_digest(scenario, "packet", scenario.schedulers[0], 1) == cell_digest(
        load_scenario("rag"), "packet", scenario.schedulers[0], 1
    )
