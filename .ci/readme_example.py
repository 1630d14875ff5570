"""Runs README's first example with whatever is installed; needs the standard library alone."""

import doctest
import pathlib
import re
import sys

text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
first = next(block for block in re.findall(r"```\w+\n(.*?)```", text, re.DOTALL) if ">>> " in block)
test = doctest.DocTestParser().get_doctest(first, {}, "README.md", "README.md", 0)
runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
runner.run(test)
print(f"README's first example: {runner.tries} statements, {runner.failures} failures")
sys.exit(1 if runner.failures or not runner.tries else 0)
