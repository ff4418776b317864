"""Pictures of every kind of page, to be looked at: `python -m tests.report.screenshots FOLDER`.

Makes the pages of a plan, a run, a sweep, a front, an advice and of two runs side by
side, and of each a picture at 1280 and 400 pixels, light and dark, and PDFs on A4 and Letter.
Needs Chromium, and
says so where there is none. With `--axe` and npm, axe-core looks at each page too, and any message
of the console, request or sideways scrolling is told.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pearl
from pearl.explanation import explain
from pearl.report.compare import SideBySide, side_of_run
from pearl.report.html import page_html
from pearl.report.report import Report, load_report

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDE, NARROW = 1280, 400
PAPERS = ("A4", "letter")

AXE = """
const puppeteer = require('puppeteer-core'), fs = require('fs');
(async () => {
  const [chromium, ...files] = process.argv.slice(2);
  const browser = await puppeteer.launch({executablePath: chromium, args: ['--no-sandbox']});
  const axe = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
  let bad = 0;
  const shown = [['light', 1280], ['light', 400], ['dark', 1280], ['dark', 400]];
  for (const file of files) for (const [scheme, width] of shown) {
    const page = await browser.newPage(), said = [];
    page.on('console', m => said.push(m.text()));
    page.on('pageerror', e => said.push(String(e)));
    page.on('request', r => r.url().startsWith('file:') || said.push('request ' + r.url()));
    await page.setViewport({width, height: 1000});
    await page.emulateMediaFeatures([{name: 'prefers-color-scheme', value: scheme}]);
    await page.goto('file://' + file);
    await page.evaluate(() => {
      for (const each of document.querySelectorAll('details')) each.open = true;
    });
    const over = await page.evaluate(() =>
      document.documentElement.scrollWidth - document.documentElement.clientWidth);
    await page.evaluate(axe);
    const found = (await page.evaluate(() => axe.run())).violations;
    const text = found.map(v => `${v.impact} ${v.id} ${v.nodes[0].target}`).join('; ');
    bad += over + said.length + found.filter(v => v.impact !== 'minor').length;
    console.log(file.split('/').pop(), scheme, width, 'sideways', over, said.join('; '), text);
    await page.close();
  }
  await browser.close();
  process.exit(bad ? 1 : 0);
})();
"""


def make_pages(folder: Path) -> list[Path]:
    """Write a page of every kind."""
    files = {name: folder / f"{name}.html" for name in
             ("plan", "run", "sweep", "front", "advice", "compare")}  # fmt: skip
    system = pearl.load("dqn_cartpole_gpu")
    plan = pearl.plan(system)
    front = pearl.pareto(system)
    Report(plan, None, system, explanation=explain(plan), front=front).save(files["plan"])
    runs = []
    for seed in (0, 1):
        out = folder / f"dqn-{seed}"
        pearl.compile("dqn_cartpole").train(steps=30_000, seed=seed, out=out)
        runs.append(load_report(out))
    runs[0].save(files["run"])
    page = SideBySide(tuple(map(side_of_run, runs))).page()
    files["compare"].write_text(page_html(page), encoding="utf-8")
    pearl.sweep(
        "q_learning_frozenlake",
        seeds=(0, 1, 2),
        over={"algorithm.learning_rate": [0.1, 0.05, 0.3]},
        out=folder / "sweep",
    ).save(files["sweep"])
    front.save(files["front"])
    wide = {"algorithm.hidden": [256, 256], "algorithm.batch_size": 256, "platform": "cpu_gpu"}
    pearl.advise(pearl.load("dqn_cartpole", set=wide)).save(files["advice"])
    return list(files.values())


def photograph(chromium: str, page: Path, width: int, *, dark: bool) -> Path:
    """Write a picture of a whole page at a width, in a frame: a window has 500 pixels at least."""
    picture = page.with_name(f"{page.stem}-{width}-{'dark' if dark else 'light'}.png")
    options = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--allow-file-access-from-files"]  # fmt: skip
    if dark:
        options.append("--blink-settings=preferredColorScheme=0")
    measure = (
        "<script>onload = () => { const f = document.querySelector('iframe'); document.title = "
        "'height ' + f.contentDocument.documentElement.scrollHeight; }</script>"
    )
    frame = page.with_suffix(".frame.html")
    height = 1000
    for script in (measure, ""):
        style = f"border:0;width:{width}px;height:{height}px"
        body = f"<body style='margin:0'><iframe src='{page.name}' style='{style}'></iframe>"
        frame.write_text(f"<!doctype html>{script}{body}", encoding="utf-8")
        window = f"--window-size={max(width, 500)},{height}"
        if script:
            dumped = [*options, window, "--dump-dom", frame.as_uri()]
            said = subprocess.run(dumped, capture_output=True, text=True, check=True, timeout=120)
            found = re.search(r"<title>height (\d+)", said.stdout)
            height = int(found[1]) if found else height
        else:
            shot = [*options, window, f"--screenshot={picture}", frame.as_uri()]
            subprocess.run(shot, capture_output=True, check=True, timeout=120)
    frame.unlink()
    return picture


def print_page(chromium: str, page: Path, paper: str) -> Path:
    """Write the pages of a printer as PDF. paper: a size that CSS knows, `A4` or `letter`."""
    pdf = page.with_name(f"{page.stem}-{paper}.pdf")
    sized = page.with_suffix(".paper.html")
    style = f"<style>@page {{ size: {paper} }}</style></body>"
    text = page.read_text(encoding="utf-8").replace("</body>", style)
    sized.write_text(text, encoding="utf-8")
    printing = [chromium, "--headless", "--no-sandbox", "--no-pdf-header-footer"]
    command = [*printing, f"--print-to-pdf={pdf}", sized.as_uri()]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    sized.unlink()
    return pdf


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--axe", action="store_true", help="also let axe-core look at the pages")
    asked = parser.parse_args(arguments)
    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        print(f"skipped: none of {', '.join(NAMES)} is installed")
        return 0
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    pages = make_pages(folder)
    for page in pages:
        for width in (WIDE, NARROW):
            for dark in (False, True):
                print(photograph(chromium, page, width, dark=dark))
        for paper in PAPERS:
            print(print_page(chromium, page, paper))
    if not asked.axe:
        return 0
    if shutil.which("npm") is None:
        print("axe-core is skipped: npm is not installed")
        return 0
    with tempfile.TemporaryDirectory() as place:
        Path(place, "axe.js").write_text(AXE, encoding="utf-8")
        npm = ["npm", "install", "--silent", "puppeteer-core", "axe-core"]
        subprocess.run(npm, cwd=place, check=True, timeout=300)
        node = ["node", "axe.js", chromium, *map(str, pages)]
        return subprocess.run(node, cwd=place, check=False, timeout=600).returncode


if __name__ == "__main__":
    sys.exit(main())
