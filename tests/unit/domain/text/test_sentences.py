"""A person's, model's or tool's words end as a sentence before ours begin."""

from __future__ import annotations

import pytest

from turngate.domain.text.sentences import as_sentence, sentences
from turngate.domain.tools.results import denied, forbidden_by_hook, interrupted, rejected, repeated


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("use the other account", "use the other account."),
        ("Really?", "Really?"),
        ('He said "no."', 'He said "no."'),
        ("(not this one)", "(not this one)."),
        ("in full:", "in full:"),
        ("\u4e0d\u53ef\u4ee5\u3002", "\u4e0d\u53ef\u4ee5\u3002"),
        ("**Stop!**", "**Stop!**"),
        ("  ", ""),
    ],
)
def test_a_text_ends_as_a_sentence(text: str, sentence: str) -> None:
    """Whatever closes it, and in any script."""
    assert as_sentence(text) == sentence
    assert sentences(text, "Next.") == f"{sentence} Next.".strip()


def test_i12_what_people_wrote_does_not_run_into_what_the_model_has_to_do() -> None:
    """A rejection, a rule's reason, a hook's reason, and their repeats."""
    for refusal in (rejected("ada", "use account B"), denied("r", "use account B"), forbidden_by_hook("use account B")):
        assert "use account B. Do not repeat" in refusal.reason
        assert "account B. Do not repeat" in repeated(refusal).reason
    assert interrupted("ada", "wrong account", started=False).reason.endswith("Reason: wrong account.")
