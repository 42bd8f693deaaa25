"""Pages in a real browser: Chromium, driven by Playwright. Docstrings name broken pages that the test has caught."""

import shutil

import numpy as np
import pytest

from fedamp_jax.report import compare_page, files, report
from tests.small_experiments import method_entry

pytestmark = pytest.mark.slow
ROUNDS = [1, 2, 5]


def run_of(names=("FedAvg", "FedAMP", "HeurFedAMP", "Separate"), seeds=None):
    """Results of eight clients in two groups, whose weights change from round to round."""
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1], 4)
    within = np.equal(groups[:, None], groups)
    xi = [np.where(within, 0.1 + 0.02 * k, 0.15 - 0.02 * k) for k in ROUNDS]
    methods = {}
    for number, name in enumerate(names):
        entry = method_entry(80.0 + number + rng.permutation(8), rounds=5, mean_accuracy_std=[1.0] * 5)
        if "AMP" in name:
            kept = {"rounds": ROUNDS, "xi": [x.tolist() for x in xi], "distances": rng.uniform(1, 9, (3, 28)).tolist()}
            entry |= {
                "xi": xi[-1].tolist(),
                "attention": kept,
                "settings": {"sigma": 3.0},
                "in_group_weight": [0.5] * 5,
            }
        methods[name] = entry
    head = {"experiment": "practical", "dataset": "digits", "created": "2030", "command": "python x.py",
            "settings": {"seeds": seeds, "participation": 1.0, "drop_rate": 0.0, "model": "mlp"}, "versions": {},
            "device": "cpu", "rounds": 5}  # fmt: skip
    return {**head, "methods": methods, "clients": 8, "groups": groups.tolist(), "examples": list(range(5, 13)),
            "chance_in_group_weight": 3 / 7, "wilcoxon": {"FedAMP": {"FedAvg": 0.01}}}  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    """Chromium; the tests are skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install '.[browser]'")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs Chromium, such as Debian's package chromium")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The report of one run."""
    folder = tmp_path_factory.mktemp("report")
    return report.write(run_of(seeds=[0, 1]), folder)


@pytest.fixture
def opened(browser, path):
    """A function that opens a page, after which nothing may have gone wrong or been asked from elsewhere."""
    said, asked, pages = [], [], []

    def open_(path=path, **settings):
        page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}, **settings})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"file://{path}")
        page.wait_for_function("[...document.querySelectorAll('.chart')].every((chart) => chart.querySelector('svg'))")
        page.wait_for_timeout(300)
        pages.append(page)
        return page

    yield open_
    for page in pages:
        page.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file://", "data:", "blob:"))] == []
    assert len(asked) == len(pages)


def chart(page, heading):
    """The chart below a heading."""
    return page.locator(f"h3:text-is('{heading}') + .chart")


def test_lines_are_switched_off(opened):
    """With their label and band; a double click leaves one alone. Failed with the label outside the line's group."""
    page = opened()
    accuracy = chart(page, "Mean test accuracy")
    labels = accuracy.locator(".textpoint:visible")
    assert sorted(labels.all_text_contents()) == ["FedAMP", "FedAvg", "HeurFedAMP", "Separate"]
    drawn = accuracy.locator("g.trace.scatter").count()
    accuracy.locator(".legendtoggle").first.click()
    page.wait_for_timeout(600)
    assert accuracy.locator("g.trace.scatter").count() == drawn - 3
    assert sorted(labels.all_text_contents()) == ["FedAMP", "HeurFedAMP", "Separate"]


def test_a_line_answers_the_pointer(opened):
    """Method, round and value. Failed with `hoverinfo` off."""
    page = opened()
    accuracy = chart(page, "Mean test accuracy")
    accuracy.locator(".nsewdrag").first.hover()
    accuracy.locator("g.trace.scatter path.point").first.hover(force=True)
    page.wait_for_timeout(300)
    assert "round" in " ".join(accuracy.locator(".hovertext").all_text_contents())


def test_the_slider_changes_the_round(opened):
    """Heat maps and histograms, on one colour scale. Failed with one colour scale per round, and without a restyle."""
    page = opened()
    weights, distances = chart(page, "FedAMP: weights"), chart(page, "FedAMP: squared distances")

    def image():
        return weights.locator(".heatmaplayer image").get_attribute("href")

    def bars():
        return distances.locator(".barlayer .point path").evaluate_all("all => all.map(p => p.getAttribute('d'))")

    def scale():
        return weights.locator(".cbaxis").all_text_contents()

    before = image(), bars(), scale()
    slider = page.locator("input[type=range]")
    slider.focus()
    slider.press("Home")
    page.wait_for_timeout(500)
    assert page.locator("output").text_content() == "round 1"
    assert image() != before[0] and bars() != before[1] and scale() == before[2]
    slider.press("End")
    page.wait_for_timeout(500)
    assert (image(), bars(), scale()) == before
    assert "sigma = 3" in distances.text_content()


def test_tables_are_sorted(opened):
    """By number, both ways. Failed when 9 came after 10, and when the first table was sorted in place of the second."""
    page = opened()
    clients = page.locator("table.sortable").nth(1)

    def column(number):
        return clients.locator(f"tbody tr > :nth-child({number})").all_text_contents()

    assert column(1) == [str(i) for i in range(8)]
    head = clients.locator("button", has_text="FedAMP final").first
    for order in (-1, 1):
        head.click()
        place = 1 + clients.locator("th[scope=col]").all_text_contents().index("FedAMP final")
        values = [float(text) for text in column(place)]
        assert values == sorted(values)[::order]
    clients.locator("button", has_text="client").first.click()
    assert column(1) == [str(i) for i in range(8)]
    clients.locator("button", has_text="examples").click()
    assert column(3) == [str(i) for i in range(12, 4, -1)]


def luminance(colour):
    red, green, blue, *alpha = [float(part) for part in colour.split("(")[1].rstrip(")").split(",")]
    return None if alpha == [0.0] else (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_colours_follow_the_reader(scheme, opened):
    """No white areas in the dark, and readable text. Failed with Plotly's own white background and dark text."""
    page = opened(color_scheme=scheme)

    def style(where, name):
        return page.locator(where).evaluate_all(f"all => all.map(one => getComputedStyle(one)['{name}'])")

    areas = [luminance(c) for c in [*style("body, .chart, table, th, .rounds", "backgroundColor"),
                                    *style(".chart .main-svg", "backgroundColor")]]  # fmt: skip
    filled = ".chart :is(.bglayer, .legend) .bg"
    fills = zip(style(filled, "fill"), style(filled, "fillOpacity"), strict=True)
    areas += [luminance(c) for c, opacity in fills if c != "none" and float(opacity) > 0]
    texts = [luminance(c) for c in style(".chart text:not(.textpoint text)", "fill")]  # all but the names of lines
    assert len(texts) > 50
    dark = scheme == "dark"
    assert all(area is None or (area < 0.2) == dark for area in areas)
    assert all((text > 0.6) == dark and text is not None for text in texts)


def test_a_phone(opened):
    """380 pixels wide: nothing but tables and code scrolls sideways. Failed with charts of a fixed width."""
    page = opened(viewport={"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 380
    widths = page.locator(".chart").evaluate_all("all => all.map(one => one.querySelector('svg').clientWidth)")
    assert max(widths) <= 380 and min(widths) > 250


def test_print(opened, tmp_path):
    """Black on white, whatever the screen is. Failed with the dark colours on paper."""
    page = opened(color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tick = page.locator(".xtick text").first.evaluate("one => getComputedStyle(one).fill")
    assert luminance(tick) < 0.2
    page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").stat().st_size > 10_000


def test_a_comparison(opened, tmp_path):
    """A chart per run and per method that runs share, all on one scale. Failed with scales of their own."""
    first, second = run_of(), run_of(names=("FedAMP", "Ditto"))
    second["rounds"] = 7
    runs = compare_page.runs_in([files.Record("one", first), files.Record("two", second)])
    (tmp_path / "compare.html").write_text(compare_page.html("Two runs", runs, "python compare.py"))
    page = opened(tmp_path / "compare.html")
    assert page.locator("h3").all_text_contents() == ["one", "two", "FedAMP"]
    limits = page.evaluate("[...document.querySelectorAll('.chart')].map((c) => c.layout.yaxis.range.join())")
    assert len(set(limits)) == 1
    assert chart(page, "FedAMP").locator(".textpoint:visible").all_text_contents() == ["one", "two"]
