#!/usr/bin/env bash
# trl 1.16.0: some of its chat templates drop the text of a message.
# Expected: a template renders content that is a string, or raises.
# Seen: those of Idefics3 and SmolVLM render nothing of it, without an error: they take lists of parts only.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 trl==1.16.0 jinja2
"$work/venv/bin/python" -W ignore - <<'PY'
import importlib.metadata
import pathlib

import jinja2
from transformers.utils import chat_template_utils

folder = pathlib.Path(str(importlib.metadata.distribution("trl").locate_file("trl/chat_templates")))
messages, silent, raised = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "four"}], [], []
for path in sorted(folder.glob("*.jinja")):
    options = {"bos_token": "<b>", "eos_token": "<e>", "pad_token": "<p>", "add_generation_prompt": False}
    try:
        [[text], _] = chat_template_utils.render_jinja_template([messages], chat_template=path.read_text(), **options)
    except jinja2.TemplateError:
        raised.append(path.stem)
        continue
    if "four" not in text:
        silent.append(path.stem)
print("trl", importlib.metadata.version("trl"), "render nothing:", silent, "raise:", raised)
assert silent == ["idefics3", "idefics3_training", "smolvlm", "smolvlm_training"]
PY
