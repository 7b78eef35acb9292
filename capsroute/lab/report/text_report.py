"""The report of a network that classifies sentences into ordered classes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ...credit import for_class, text_credit
from ...nets import SST
from ..encoders import Encoder
from ..formatting import percent, readable
from ..html import Html, Section, folded, join, number_table, paragraph, table, tinted_words
from .sections import CREDIT, Answers, RunDetails, mistakes_section, write_page

N_MISTAKES = 20


def write_text_report(
    folder: Path,
    details: RunDetails,
    answers: Answers,
    texts: Sequence[str],
    network: SST | None = None,
    encoder: Encoder | None = None,
) -> Path:
    """Write `folder/report.html` in place of an earlier report, and return its path.

    The texts, from any origin because they are escaped, are the test split; the classes are named in the order of their
    scale. With the network the report shows the credit of some answers, or says why it does not if the encoder is
    missing.
    """
    shares = np.bincount(answers.true) / len(answers.true)
    more = {f"always “{answers.names[int(shares.argmax())]}”, the commonest": percent(shares.max())}
    if len(answers.names) > 2:
        near = float((np.abs(answers.predicted - answers.true) <= 1).mean())
        more["at most one class from the true one"] = percent(near)
    note = (
        "The interval (Wilson) takes each sentence for an independent trial: it says how far the choice of test "
        "sentences may have moved the accuracy, not what training with another seed would give."
    )
    worst = answers.worst(N_MISTAKES)
    rows = [(readable(texts[k]), *answers.describe(k)) for k in worst]
    mistakes = table("Mistakes", ["sentence", "true", "predicted", "probability"], rows, "texts")
    sections = [mistakes_section(answers, len(worst), mistakes)]
    if network is not None:
        sections.append(show_credit(answers, texts, network, encoder))
    return write_page(folder, details, answers, more, note, sections)


def show_credit(answers: Answers, texts: Sequence[str], network: SST, encoder: Encoder | None) -> Section:
    """Show which tokens, at which depth, spoke for the predicted class."""
    if encoder is None:
        return Section("Credit", [paragraph("Left out, because the encoder that the network reads is not here.")])
    parts = [
        paragraph(
            "What each token, over all depths, did for the odds of the predicted class against all others: blue for "
            "it, orange against it, the strongest in each sentence deepest. Below, the same by depth, where 0 is the "
            "embedding and each further one a layer of the transformer, and the per cent of each hidden state that "
            "the class used. What was used says where data went, not what decided."
        )
    ]
    for kind, which in answers.credited().items():
        shown = [_credited_sentence(answers, texts[k], network, encoder, k) for k in which]
        parts += [paragraph(CREDIT[kind]), *shown] if shown else []
    return Section("Credit", parts)


def _credited_sentence(answers: Answers, sentence: str, network: SST, encoder: Encoder, which: int) -> Html:
    """Show a sentence in colours, its answer, and its tokens by depth."""
    device, target = network.depth_emb.device, int(answers.predicted[which])
    (tokens,) = encoder.split_tokens([sentence])
    mask, embs = (t.float().to(device) for t in encoder.encode([tokens.ids]))
    credit = text_credit(network, mask, embs)
    net = for_class(credit.net, credit.scores[:, None], torch.full((1, 1), target, device=device))[0].cpu().numpy()
    used = 100 * credit.use[0, ..., target].cpu().numpy()  # [n, depth]
    true, predicted, probability = answers.describe(which)
    answer = f"{predicted}, {probability}" + ("" if answers.hit[which] else f"; true: {true}")
    answer += "; the text was truncated to these tokens" if tokens.truncated else ""
    shown = [readable(piece) for piece in tokens.pieces]
    by_depth = folded(
        "Tokens by depth: for and against, and per cent used",
        number_table(net, ".2f", float(np.abs(net).max()), "depths", shown),
        number_table(used, ".0f", 100, "depths", shown),
    )
    words = tinted_words(list(zip(tokens.spaces, shown, strict=True)), net.sum(1).tolist())
    return join([words, paragraph(f"{answer}."), by_depth])
