"""Settings: which of several layers wins, and what a program of its own adds."""

from __future__ import annotations

from mpilaunch.job.settings import Layer, Section, Setting, Settings, merge_program_settings

NP = Setting(4, "--np", Layer.COMMAND_LINE)
HOSTS = Setting("hosts", "jobs.yaml:3", Layer.FILE)


def test_values_and_their_sources() -> None:
    settings = Settings({"np": NP, "host-file": HOSTS})
    assert settings["np"] == 4
    assert (settings.source("host-file"), settings.layer("host-file")) == ("jobs.yaml:3", Layer.FILE)
    assert settings.fields("np", "host-file") == {"np": 4, "host_file": "hosts"}


def test_the_layers_are_in_order() -> None:
    assert sorted(Layer) == [Layer.DEFAULT, Layer.INHERITED, Layer.FILE, Layer.ENVIRONMENT, Layer.COMMAND_LINE]
    assert Setting(None) == Setting(None, "default", Layer.DEFAULT)


def test_a_programs_own_settings_override_and_lists_of_a_layer_are_joined() -> None:
    job = {"np": NP, "x": Setting(("A",), "-x", Layer.COMMAND_LINE), "wdir": Setting(("a",), "file", Layer.FILE)}
    own = {"np": NP._replace(value=2)} | {name: Setting(("B",), name, Layer.COMMAND_LINE) for name in ("x", "wdir")}
    merged = merge_program_settings(job, own)
    assert {name: setting.value for name, setting in merged.items()} == {"np": 2, "x": ("A", "B"), "wdir": ("B",)}


def test_the_repeated_values_of_a_section() -> None:
    section = Section(["prog"], {"x": Setting(("A", "B")), "np": NP})
    assert (section.values("x"), section.values("np"), section.values("y")) == (("A", "B"), (), ())
