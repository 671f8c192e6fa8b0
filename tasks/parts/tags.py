"""Answers in tags: what stands between the last <answer> and </answer>."""


def last_tagged(text: str, tag: str) -> str | None:
    """The content of the last closed pair of tags, as it is; None where there is none. Linear in the length."""
    before, closing, _ = text.rpartition(f"</{tag}>")
    _, opening, content = before.rpartition(f"<{tag}>")
    return content if closing and opening else None
