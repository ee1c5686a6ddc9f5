"""kvnet::WheelSimulatorImpl as an ns-3 simulator engine: what stock ns-3 code expects of one."""

from __future__ import annotations

import pytest

from tests.packet.test_network import in_a_fresh_process

ENGINES = ("ns3::DefaultSimulatorImpl", "kvnet::WheelSimulatorImpl")

INTERFACE = """
    using namespace ns3;
    std::string out;
    void Note(std::string what) {
        out += what + "@" + std::to_string(Simulator::Now().GetNanoSeconds()) + "/" +
               (Simulator::GetContext() == Simulator::NO_CONTEXT ? "-" : std::to_string(Simulator::GetContext())) + " ";
    }
    std::string Play(std::string engine) {
        GlobalValue::Bind("SimulatorImplementationType", StringValue(engine));
        Simulator::Schedule(NanoSeconds(20), &Note, std::string("b"));
        Simulator::Schedule(NanoSeconds(10), &Note, std::string("a"));
        Simulator::Schedule(NanoSeconds(20), &Note, std::string("c"));
        Simulator::ScheduleNow(&Note, std::string("now"));
        Simulator::ScheduleWithContext(7, NanoSeconds(15), &Note, std::string("seven"));
        EventId cancelled = Simulator::Schedule(NanoSeconds(30), &Note, std::string("cancelled"));
        EventId removed = Simulator::Schedule(NanoSeconds(31), &Note, std::string("removed"));
        EventId far = Simulator::Schedule(Seconds(2), &Note, std::string("far"));
        Simulator::ScheduleDestroy(&Note, std::string("destroy"));
        EventId gone = Simulator::ScheduleDestroy(&Note, std::string("gone"));
        Simulator::Remove(gone);
        Simulator::Schedule(NanoSeconds(25), MakeEvent([=]() mutable {
            Simulator::Cancel(cancelled);
            Simulator::Remove(removed);
            out += cancelled.IsExpired() && removed.IsExpired() && far.IsPending() ? "expired " : "WRONG ";
            out += std::to_string(Simulator::GetDelayLeft(far).GetNanoSeconds()) + " ";
        }));
        Simulator::Stop(Seconds(1));
        Simulator::Run();
        out += "stopped@" + std::to_string(Simulator::Now().GetNanoSeconds()) + (Simulator::IsFinished() ? "F " : "- ");
        Simulator::Run();
        out += "end@" + std::to_string(Simulator::Now().GetNanoSeconds()) + (Simulator::IsFinished() ? "F " : "- ");
        Simulator::Destroy();
        return out;
    }
"""


def play(source: str, engine: str) -> str:
    """What `std::string Play(std::string engine)` of a C++ source gives, in a process of its own."""
    code = """
        import sys
        import cppyy
        from harness.packet import runtime
        runtime.load()
        root = runtime.ns3_root()
        cppyy.add_include_path(str(root / "include"))
        cppyy.load_library(str(root / "lib64" / "libns3.44-core.so"))
        cppyy.include("ns3/core-module.h")
        cppyy.cppdef(sys.argv[2])
        print(cppyy.gbl.Play(sys.argv[1]))
    """
    return in_a_fresh_process(code, engine, source)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_simulator_interface(engine: str) -> None:
    played = play(INTERFACE, engine).strip()
    assert played == (
        "now@0/- a@10/- seven@15/7 b@20/- c@20/- expired 1999999975 stopped@1000000000F far@2000000000/- "
        "end@2000000000F destroy@2000000000/-"
    )


def test_stock_udp_over_point_to_point_runs_on_it_unchanged() -> None:
    """W3 with 10 kB flows: 64 flows of 10 packets over 6 links, every packet delivered, and as many events."""
    code = """
        import sys
        from harness.bench import run_stock
        from harness.packet import runtime
        runtime.load()
        result = run_stock("W3", 1000, share=2000, engine=sys.argv[1])
        print(result.received, result.hops, result.events)
    """
    default, wheel = (in_a_fresh_process(code, engine).split() for engine in ENGINES)
    assert wheel == default
    assert wheel[:2] == ["640", "3840"]


def test_slots_change_their_width_without_changing_the_order() -> None:
    """Busy and idle times of several looks each, delays within, at and beyond the horizon, and many equal times."""
    source = """
        using namespace ns3;
        uint64_t g_digest = 0, g_events = 0;
        const int64_t BUSY[] = {0, 4000, 4000, 16000, 28000, 36000}, IDLE[] = {0, 904000, 4196000, 9000000, 70000000};
        void Fire(uint64_t source, uint64_t random) {
            const int64_t now = Simulator::Now().GetTimeStep();
            g_digest = (g_digest * 1000003 + source) * 1000003 + now;
            ++g_events;
            if (now > 900000000) { return; }
            random = random * 6364136223846793005ULL + 1442695040888963407ULL;
            const bool busy = now / 150000000 % 2;
            const int64_t delay = busy ? BUSY[(random >> 33) % 6] : IDLE[(random >> 33) % 5];
            Simulator::Schedule(TimeStep(delay), &Fire, source, random);
        }
        std::string Play(std::string engine) {
            GlobalValue::Bind("SimulatorImplementationType", StringValue(engine));
            for (uint64_t source = 0; source < 32; ++source) {
                Simulator::Schedule(TimeStep(source / 2 * 4000), &Fire, source, source);
            }
            Simulator::Run();
            Simulator::Destroy();
            return std::to_string(g_events) + " " + std::to_string(g_digest);
        }
    """
    default, wheel = (play(source, engine).split() for engine in ENGINES)
    assert wheel == default
    assert int(wheel[0]) > 500_000
