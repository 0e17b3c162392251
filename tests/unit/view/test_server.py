import json
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from fakes.project import oncurve
from fakes.tables import table
from fakes.viewed import KEY, record, write_run
from oncurve.report import RolloutFiles, RolloutIndex
from oncurve.view import FOLDER, Library, application, bundle, copy_runs, view
from oncurve.view.front import OWN, VENDORED

ASKED = table("server", "asked")
ROUTES = ["/", "/view.js", "/view.css", "/nothing", *(f"/api/{question}" for question in ASKED)]
WITH_KEY = {"authorization": f"Bearer {KEY}"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("oncurve.view.library._doctored", lambda path: {"present": []})
    write_run(tmp_path / "runs" / "a")
    (tmp_path / "secret.jsonl").write_text('{"step": 1, "reward/mean": 1.0}\n')
    return tmp_path


@pytest.fixture
def client(site: Path) -> TestClient:
    return TestClient(application(Library(site / "runs"), KEY), base_url="http://127.0.0.1:8765")


def ask(client: TestClient, question: str, status: int = 200, **arguments):
    answer = client.get(f"/api/{question}", params=arguments, headers=WITH_KEY)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_refuses_another_host_and_another_origin_and_data_without_the_key(client, route: str) -> None:
    asked = ASKED.get(route.rpartition("/")[2], {})

    def status(**headers: str) -> int:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = client.get(route, params=asked, headers={**WITH_KEY, **given})
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; ")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers
        return answer.status_code

    public = route in ("/", "/view.js", "/view.css")
    good = 404 if route == "/nothing" else 200
    assert status() == status(origin="http://127.0.0.1:8765") == status(sec_fetch_site="same-origin") == good
    assert status(host="localhost:9000") == status(host="[::1]:9000") == good
    for host in table("server", "other_hosts"):
        assert status(host=host) == 403, host
    for origin in ("https://evil.example", "null", "http://127.0.0.1:8766", "http://localhost:8765", "file://"):
        assert status(origin=origin) == 403, origin
    assert status(sec_fetch_site="cross-site") == (200 if route == "/" else 403)  # a link to the page may be followed
    for key in ("", "Bearer ", "Bearer wrong", KEY[:-1], f"Bearer {KEY}x"):
        assert status(authorization=key) == (200 if public else 403), key
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert client.request(method, route, headers=WITH_KEY).status_code in (404, 405)
        assert client.request(method, route).status_code == (405 if public else 403)


@pytest.mark.parametrize("name", ["../secret", "..", "/etc", "a/../..", "a\0", "%2e%2e", "b", "", "a/rollouts", "."])
def test_only_runs_that_were_found_have_names(client, name: str) -> None:
    for question in ("stamp", "run", "metrics", "doctor"):
        ask(client, question, 404, run=name)


def test_a_run_that_leads_elsewhere_is_refused(client, site: Path) -> None:
    for number, name in enumerate(table("server", "files_that_may_be_links")):
        run = write_run(site / "runs" / f"b{number}")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(site / "secret.jsonl")
    (site / "runs" / "linked").symlink_to(write_run(site / "elsewhere"))
    client = TestClient(application(Library(site / "runs"), KEY), base_url="http://localhost")
    listed = {row["run"]: row for row in ask(client, "runs")}
    assert set(listed) == {"a", "b0", "b1", "b2", "b3"}
    assert {name: row["reward"] for name, row in listed.items() if row["state"] == "refused"} == dict.fromkeys(
        ["b0", "b1", "b2", "b3"]
    )
    for number in range(4):
        assert "link" in ask(client, "run", 409, run=f"b{number}")["error"]


def test_bad_arguments_are_refused_in_words(client) -> None:
    for arguments in table("server", "bad_arguments"):
        assert ask(client, "groups", 400, **arguments)["error"]
    ask(client, "group", 404, run="a", step=3, group=9)
    ask(client, "group", 404, run="a", step=1, group=0)
    ask(client, "flips", 404, run="a", first=0, last=3, problem=9)
    ask(client, "flips", 409, run="a", first=0, last=4)
    ask(client, "secrets", 404)
    assert ask(client, "groups", run="a", step=7)["rows"] == []


def test_a_link_of_another_command_names_a_run_by_its_folder(site: Path) -> None:
    write_run(site / "runs" / "deep" / "c")
    library = Library(site / "runs")
    assert library.answer("run", {"run": "c"})["folder"] == library.answer("run", {"run": "deep/c"})["folder"]
    assert Library(site / "runs" / "a").answer("run", {"run": "a"})["kept"] == [3]


def test_groups_are_sorted_filtered_and_sent_in_parts(client, site: Path) -> None:
    rewards = [(1.0, 1.0), (0.0, 0.0), (1.0, 0.0), (0.5, 0.0)]
    files = RolloutFiles(site / "runs" / "a")
    records = [
        record(number, f"{'even' if number % 2 == 0 else 'Odd'} {number}", rewards[number % 4]) for number in range(500)
    ]
    files.write(4, files.content([{**each, "verifier": "exact"} for each in records]))
    found = ask(client, "groups", run="a", step=4, sort="mean", falling=1, start=100, count=10_000)
    assert (found["total"], found["found"], len(found["rows"])) == (500, 500, 200)
    assert [row["mean"] for row in found["rows"]] == [1.0] * 25 + [0.5] * 125 + [0.25] * 50
    constant = ask(client, "groups", run="a", step=4, only="constant")
    assert constant["found"] == 250
    assert {row["spread"] for row in constant["rows"]} == {0.0}
    for only, right in (("wrong", {0}), ("solved", {2})):
        assert {row["right"] for row in ask(client, "groups", run="a", step=4, only=only)["rows"]} == right
    odd = ask(client, "groups", run="a", step=4, text="oDD 4", count=3)
    assert [row["group"] for row in odd["rows"]] == [41, 43, 45]


def test_text_is_found_in_whole_prompts_and_completions_in_parts(client, site: Path, monkeypatch) -> None:
    monkeypatch.setattr("oncurve.view.library.SEARCH_SECONDS", 0.0)
    files = RolloutFiles(site / "runs" / "a")
    texts = ["x" * 500 + ' Straße "7"\n', "reward ids", "\u2028 advantage", "none", "STRASSE"]
    texts += [f"some {number}" for number in range(15)]
    records = [record(number, text) for number, text in enumerate(texts)]
    records[3]["completions"][1]["text"] = "a completion with a STRASSE in it"
    records[4]["prompt"]["text"], records[4]["completions"][0]["text"] = "none", "none"
    files.write(5, files.content(records))
    for text in table("server", "searched"):
        found, parts = {"searched": 0}, 0
        while found["searched"] < len(texts):
            before, found = found["searched"], ask(client, "groups", run="a", step=5, text=text)
            parts += 1
            assert found["searched"] > before
        slow = [
            number
            for number, each in enumerate(records)
            for part in [
                [each["prompt"]["text"]]
                + [one["text"] for item in each["completions"] for one in (item, *item["turns"])]
            ]
            if any(text.casefold() in one.casefold() for one in part)
        ]
        assert [row["group"] for row in found["rows"]] == slow, text
        assert parts > 10


def test_a_hundred_thousand_groups_cost_what_is_shown(client, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    from oncurve.report.rollouts import packed

    row = {**RolloutIndex(site / "runs" / "a").rows(3)[0], "right": 1}
    path = site / "runs" / "a" / "rollouts" / "step-000009.jsonl.gz"
    path.write_bytes(gzip.compress(b""))
    rows = [{**row, "group": n, "offset": 0, "bytes": 20, "line": n} for n in range(100_000)]
    path.with_name("step-000009.index.gz").write_bytes(packed(path.stat().st_size, rows))
    made = []
    inner = RolloutIndex.rows
    monkeypatch.setattr(
        "oncurve.report.index.RolloutIndex.rows",
        lambda self, step, wanted=None: made.append(len(wanted)) or inner(self, step, wanted),
    )
    answer = client.get(
        "/api/groups", params={"run": "a", "step": 9, "sort": "mean", "start": 99_950}, headers=WITH_KEY
    )
    assert answer.json()["found"] == 100_000
    assert made == [50]
    assert len(answer.content) < 50_000


def test_metrics_come_in_parts_and_again_where_the_file_was_cut(client, site: Path) -> None:
    file = site / "runs" / "a" / "metrics.jsonl"
    first = ask(client, "metrics", run="a")
    assert [line["step"] for line in first["lines"]] == [1, 2, 3]
    with file.open("a") as out:
        out.write('{"step": 4, "reward/mean": 1.0}\n[1]\nnonsense\n{"step": NaN, "x": true, "torn": ')
    more = ask(client, "metrics", run="a", offset=first["to"])
    assert more["lines"] == [{"step": 4, "reward/mean": 1.0}]
    again = ask(client, "metrics", run="a", offset=more["to"])
    assert (again["lines"], again["to"]) == ([], more["to"])
    file.write_text('{"step": 1, "reward/mean": 0.125}\n{"step": 2, "reward/mean": 0.25}\n' + " " * 400)
    cut = ask(client, "metrics", run="a", offset=more["to"])
    assert (cut["from"], len(cut["lines"])) == (0, 2)


def test_the_stamp_changes_when_the_run_writes(client, site: Path) -> None:
    seen = [ask(client, "stamp", run="a")]
    for act in (
        lambda: (site / "runs/a/metrics.jsonl").write_text('{"step": 1}\n'),
        lambda: (site / "runs/a/rollouts/step-000007.jsonl.gz").write_bytes(b""),
        lambda: (site / "runs/a/environment.json").write_text("{ }"),
    ):
        act()
        seen.append(ask(client, "stamp", run="a"))
    assert len(set(seen)) == len(seen)


def test_numbers_that_json_does_not_know_and_half_characters_arrive(client, site: Path) -> None:
    write_run(site / "runs" / "odd", ["half \ud800 \u2028 <b>"], rewards=(float("nan"), 1.0))
    group = ask(client, "group", run="odd", step=3, group=0)
    assert "<b>" in group["prompt"]["text"]
    assert group["completions"][0]["reward"] is None


def test_the_script_has_every_module_and_no_way_for_text_to_become_markup() -> None:
    own = {path.stem for path in FOLDER.glob("*.mjs")}
    assert own == set(OWN)
    for path in FOLDER.glob("*.mjs"):
        text = path.read_text(encoding="utf-8")
        for word in table("server", "ways_to_markup"):
            assert word not in text, (path.name, word)
    script = bundle()
    assert "</script" not in script
    assert all(f"$modules['{name}']" in script for name in VENDORED)
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 250_000


def test_every_vendored_file_is_the_one_that_is_named() -> None:
    folder = FOLDER / "vendor"
    packages = tomllib.loads((folder / "vendored.toml").read_text(encoding="utf-8"))["package"]
    named = {each["file"]: each["sha256"] for package in packages for each in package["file"]}
    assert named == {
        path.name: sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.suffix in (".mjs", ".js", ".css")
    }
    texts = (folder / "LICENSES.txt").read_text(encoding="utf-8")
    assert all(package["version"] and package["name"] in texts for package in packages)


def test_a_copy_holds_the_chosen_steps_and_nothing_is_overwritten(site: Path) -> None:
    page = copy_runs(site / "runs", site / "copy", None)
    text = page.read_text(encoding="utf-8")
    assert "default-src 'none'; script-src 'sha256-" in text
    assert "connect-src 'none'" in text
    assert "http://" not in text.replace("http://www.w3.org", "").partition("<script>")[0]
    with pytest.raises(Exception, match="not empty"):
        copy_runs(site / "runs", site / "copy", None)
    with pytest.raises(Exception, match="no run in"):
        copy_runs(site / "runs", site / "other", "1-2")
    assert not (site / "other").exists()


def test_mistakes_of_the_command_are_bad_input(site: Path, monkeypatch, capfd) -> None:
    def refused(*arguments: str) -> str:
        said = oncurve(["view", *arguments], monkeypatch, capfd)
        assert said.code == 2, said
        return said.err

    runs = str(site / "runs")
    assert "not a folder" in refused(str(site / "none"), "--no-browser")
    assert "--export" in refused(runs, "--steps", "1")
    assert "1,10,20-25" in refused(runs, "--export", str(site / "new"), "--steps", "one")
    assert "--port" in refused(runs, "--no-browser", "--port", "99999")
    RolloutFiles(site / "runs/a").write(2, RolloutFiles(site / "runs/a").content([record(0, "2+2=")]))
    for at, said in (
        ("40", "expected a link such as '#/run/40/3', got '40'"),
        ("#/b/3", "has no run 'b'"),
        ("#/a/7/0", "no groups of step 7 are kept; of: 2, 3; the nearest is 3"),
    ):
        assert said in refused(runs, "--no-browser", "--at", at)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install oncurve[view]" in refused(runs, "--no-browser")


def test_the_server_needs_no_torch(site: Path) -> None:
    import subprocess

    program = (
        "import sys; from pathlib import Path; from oncurve.view import Library, application\n"
        "library = Library(Path(sys.argv[1])); application(library, 'key'); library.answer('runs', {})\n"
        "library.answer('group', {'run': 'a', 'step': '3', 'group': '0'})\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(site / "runs")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_settings_are_told_apart_by_their_keys(client, site: Path) -> None:
    (site / "runs/a/config.toml").write_text(
        '[run]\nsteps = 3\nat = 2020-01-01\n[[rewards]]\nkind = "math"\nlist = [1, 2]\n'
    )
    about = ask(client, "run", run="a")
    assert about["settings"] == table("server", "settings")
    assert json.dumps(about["settings"])


@pytest.mark.parametrize("at", [None, "#/", "#/a", "#/a/3/0/1", "#/a/curves/reward%2Fmean", "#/a/evaluation/0/3"])
def test_a_link_that_leads_somewhere_is_in_the_printed_address(site: Path, at, capsys, monkeypatch) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    view(site / "runs", None, False, at)
    assert capsys.readouterr().out.splitlines()[0].partition("&")[0].endswith((at or "#/")[1:].rstrip("/"))
