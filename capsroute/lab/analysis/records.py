"""Published accuracies on the paper's three tasks, as its tables give them, and ours beside them.

SMALLNORB is table 2 of Heinsen (2019), SST5 table 3, SST2 table 4; years are those of the works they cite.
"""

from typing import NamedTuple

PAPER = "Heinsen, 2019, arXiv:1911.00792"


class Record(NamedTuple):
    """One network on one task."""

    method: str
    year: int
    accuracy: float  # per cent of the test split
    source: str  # who reported it
    parameters: int | None = None  # trained ones, where known
    deviation: float | None = None  # standard deviation over seeds, where there are several
    note: str = ""
    ours: bool = False

    @property
    def error(self) -> float:
        """Per cent of the test split."""
        return 100 - self.accuracy


SMALLNORB = (
    Record("CNN", 2011, 97.4, "Cireşan et al., 2011, arXiv:1102.0183", 2_700_000, note="distorted images in training"),
    Record("dynamic routing", 2017, 97.3, "Sabour et al., 2017, arXiv:1710.09829", 8_200_000),
    Record("EM routing", 2018, 98.2, "Hinton et al., 2018, ICLR", 310_000),
    Record("EM routing, crops", 2018, 98.6, "Hinton et al., 2018, ICLR", 310_000, note="mean of several crops a pair"),
    Record("the paper", 2019, 99.1, PAPER, 272_000),
    Record(
        "the author's weights",
        2019,
        98.81,
        "results/smallnorb/official.json",
        271_688,
        note="on the JPEG copy",
        ours=True,
    ),
    Record(
        "capsroute, five seeds",
        2026,
        97.89,
        "results/smallnorb/replicate.json",
        271_688,
        deviation=0.25,
        note="on the JPEG copy",
        ours=True,
    ),
)
SST5 = (
    Record("RNTN", 2013, 45.7, "Socher et al., 2013"),
    Record("CNN", 2014, 48.0, "Kim, 2014", note="word2vec"),
    Record("Para-Vec", 2014, 48.7, "Le and Mikolov, 2014"),
    Record("LSTM", 2015, 49.1, "Wieting et al., 2015", note="PP2B"),
    Record("DMN", 2015, 51.1, "Kumar et al., 2015", note="GloVe"),
    Record("NSE", 2016, 52.8, "Munkhdalai and Yu, 2016", note="GloVe"),
    Record("ByteLSTM", 2017, 52.9, "Radford et al., 2017", note="82 million reviews"),
    Record("CT-LSTM", 2017, 53.6, "Looks et al., 2017", note="word2vec"),
    Record("BCN+Char", 2017, 53.7, "McCann et al., 2017", note="CoVe"),
    Record("BCN", 2018, 54.7, "Peters et al., 2018", note="ELMo"),
    Record("SuBiLSTM+Char", 2018, 56.2, "Brahma, 2018", note="CoVe"),
    Record("the paper", 2019, 58.5, PAPER, 140_480, note="frozen GPT-2 large"),
    Record(
        "capsroute, five seeds",
        2026,
        48.55,
        "results/sst5/routing/replicate.json",
        38_464,
        deviation=0.42,
        note="frozen MiniLM-L6",
        ours=True,
    ),
)
SST2 = (
    Record("BCN+Char", 2017, 90.3, "McCann et al., 2017", note="CoVe"),
    Record("block-sparse LSTM", 2017, 93.2, "Radford et al., 2017"),
    Record("BERT", 2018, 94.9, "Devlin et al., 2018, arXiv:1810.04805"),
    Record("Snorkel", 2018, 96.2, "Ratner et al., 2018", note="several tasks, ensemble"),
    Record("MT-DNN", 2019, 95.6, "Liu et al., 2019", note="several tasks"),
    Record("MT-DNN", 2019, 96.5, "Liu et al., 2019", note="several tasks, ensemble"),
    Record("XLNet", 2019, 96.8, "Yang et al., 2019, arXiv:1906.08237", note="several tasks, ensemble"),
    Record("the paper", 2019, 95.6, PAPER, 138_944, note="frozen GPT-2 large"),
    Record(
        "capsroute, five seeds",
        2026,
        86.14,
        "results/sst2/routing/replicate.json",
        36_928,
        deviation=0.37,
        note="frozen MiniLM-L6",
        ours=True,
    ),
)
