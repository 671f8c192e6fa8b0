"""CFG-10: a chat format without a usable template is one line that says what to set, before anything is sampled."""

from pathlib import Path

import pytest

from bench.config import PretrainedModel, TinyModel
from bench.models import ModelUnavailable, create_tiny, load_folder, load_pretrained, save_folder


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "has no chat template: give plain or auto, or set a template"),
        ("{% if %}", "chat template fails (TemplateSyntaxError"),
        ("{{ raise_exception('users only') }}", "chat template fails (TemplateError: users only)"),
        ("{{ messages[7].content }}", "chat template fails (UndefinedError"),
    ],
)
def test_cfg_10_a_template_that_is_not_there_or_fails(tmp_path: Path, template: str | None, reason: str) -> None:
    model = create_tiny(TinyModel(), "0123456789+=", seed=0)
    model.tokenizer.chat_template = template
    save_folder(model, tmp_path)
    with pytest.raises(ModelUnavailable) as error:
        load_pretrained(PretrainedModel(path=str(tmp_path), prompt_format="chat"))
    assert str(error.value).startswith("model.prompt_format: chat asked for")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
    assert load_folder(tmp_path, "plain").prompt_format == "plain"


def test_cfg_10_auto_without_a_template_is_plain(tmp_path: Path) -> None:
    save_folder(create_tiny(TinyModel(), "0123456789+=", seed=0), tmp_path)
    assert load_folder(tmp_path, "auto").prompt_format == "plain"
