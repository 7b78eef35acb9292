"""The routes: `/predict`, `/explain` and `/health`, with schemas that depend on what the network takes.

Requests that come at the same time are computed together, in one thread.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from io import BytesIO
from typing import Annotated, Any, NamedTuple

import numpy as np
from fastapi import Depends, FastAPI, File, HTTPException, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.formparsers import MultiPartParser

from ... import __version__
from ..errors import UserError
from ..explain import ImageExplanation, TextExplanation
from ..explain import explain as explain_input
from ..formatting import readable
from ..html import encode_png
from ..inference import MAX_CHARACTERS, Prediction, Predictor
from .guard import Guard, Limits, RefusedError

BATCH = 32  # inputs computed together
MEDIA = {"images": "multipart/form-data", "texts": "application/json", "arrays": "application/json"}

Named = tuple[str, Any]  # an input, after what to call it
Compute = Callable[[Sequence[Any]], Sequence[Any]]
Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Vectors = Annotated[list[list[float]], Field(min_length=1, examples=[[[0.1, 0.2], [0.3, 0.4]]])]


class Answer(BaseModel):
    """The class of one input."""

    input: str = Field(description="Name of the file, the text, or the number of the set.")
    label: str = Field(description="The class with the highest probability; empty for an empty text.")
    probabilities: dict[str, float]
    truncated: bool = Field(description="Whether the text has more tokens than were read.")


class Answers(BaseModel):
    predictions: list[Answer]


class Place(BaseModel):
    """A token of a text, or a vector of a set."""

    text: str
    credit: float


class Explained(BaseModel):
    """What an answer rests on."""

    prediction: Answer
    caption: str
    places: list[Place] = Field(description="Tokens or vectors, with their net credit; empty for an image.")
    picture: str = Field(description="An image under its net credit, a PNG file in base64; empty for others.")


class Health(BaseModel):
    status: str
    network: str
    kind: str
    classes: list[str]
    version: str


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OneText(_Strict):
    text: Text


class OneSet(_Strict):
    vectors: Vectors


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 403, 408, 413, 415, 421, 422, 503)
}


class Job(NamedTuple):
    """The inputs of a request."""

    compute: Compute
    values: Sequence[Any]
    future: "asyncio.Future[Sequence[Any]]"


class Batcher:
    """Gathers what waits while the thread is busy. One thread, so that memory does not grow with requests.

    Args:
        limits: How many inputs may wait, and how long.
    """

    def __init__(self, limits: Limits):
        self.limits, self.n_waiting = limits, 0
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "capsroute")

    async def submit(self, compute: Compute, values: Sequence[Any]) -> Sequence[Any]:
        """Return `compute(values)`, computed with those of other requests; refuses if too much waits."""
        if self.n_waiting + len(values) > self.limits.waiting:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many inputs are waiting; try again later")
        job = Job(compute, values, asyncio.get_running_loop().create_future())
        self.n_waiting += len(values)
        self._jobs.put_nowait(job)
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                return await job.future
        except TimeoutError:
            reason = f"no answer within {self.limits.answer_seconds:g} seconds; try again later"
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, reason) from None
        finally:
            self.n_waiting -= len(values)

    async def run(self) -> None:
        """Compute answers until this task is cancelled."""
        job = None
        try:
            while True:
                jobs = [job or await self._jobs.get()]
                job, n = None, len(jobs[0].values)
                while n < BATCH and not self._jobs.empty():
                    job = self._jobs.get_nowait()
                    if job.compute != jobs[0].compute:
                        break
                    jobs.append(job)
                    n, job = n + len(job.values), None
                await self._compute([job for job in jobs if not job.future.done()])  # others gave up
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _compute(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            return
        values = [value for job in jobs for value in job.values]
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, jobs[0].compute, values)
        except Exception as error:  # every request that waits gets it
            for job in jobs:
                if not job.future.done():
                    job.future.set_exception(error)
            return
        start = 0
        for job in jobs:
            if not job.future.done():
                job.future.set_result(found[start : start + len(job.values)])
            start += len(job.values)


def make_app(predictor: Predictor, host: str, names: Sequence[str] = (), limits: Limits | None = None) -> FastAPI:
    """Return the application of a network.

    Args:
        predictor: The network.
        host: Address that the server listens at.
        names: Other names that clients may call it by.
        limits: Limits of size and time.
    """
    limits = limits or Limits()
    batcher = Batcher(limits)
    MultiPartParser.spool_max_size = limits.body_bytes  # so that no upload is written to the disk

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(batcher.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    app = FastAPI(
        title="capsroute",
        version=__version__,
        description=f"Classifies {predictor.kind}: {', '.join(predictor.classes)}.",
        docs_url=None,  # its page loads from another host
        redoc_url=None,
        lifespan=lifespan,
    )
    app.add_exception_handler(RequestValidationError, _show_wrong_input)
    media = MEDIA[predictor.kind]
    app.add_middleware(Guard, host=host, names=names, limits=limits, media={"/predict": media, "/explain": media})

    read_many, read_one = make_readers(predictor.kind, limits.items)

    def predict_all(named: Sequence[Named]) -> list[Prediction]:
        return predictor([value for _, value in named], [name for name, _ in named])

    def explain_all(named: Sequence[Named]) -> list[Explained | str]:
        return [_explain(predictor, name, value) for name, value in named]

    @app.post("/predict", responses=REFUSALS)
    async def predict(named: Annotated[Any, Depends(read_many)]) -> Answers:
        """Classify inputs; images are PNG, JPEG, WEBP or BMP."""
        found = await batcher.submit(predict_all, named)
        if wrong := [p.problem for p in found if p.error]:
            raise HTTPException(422, "; ".join(wrong[:5]))
        return Answers(predictions=[Answer(**prediction._asdict()) for prediction in found])

    @app.post("/explain", responses=REFUSALS)
    async def explain(named: Annotated[Any, Depends(read_one)]) -> Explained:
        """Show what the answer for an input rests on."""
        (found,) = await batcher.submit(explain_all, named)
        if isinstance(found, str):
            raise HTTPException(422, found)
        return found

    @app.get("/health")
    async def health() -> Health:
        """Say that the server is there, and what it classifies."""
        facts = {"network": type(predictor.network).__name__, "kind": predictor.kind, "version": __version__}
        return Health(status="ok", classes=list(predictor.classes), **facts)

    return app


def make_readers(kind: str, n: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return functions that read up to `n` inputs of a request, and a single one, each with a name."""

    class Texts(_Strict):
        texts: Annotated[list[Text], Field(min_length=1, max_length=n)]

    class Sets(_Strict):
        sets: Annotated[list[Vectors], Field(min_length=1, max_length=n)]

    async def read_image(image: UploadFile) -> list[Named]:
        return [(readable(image.filename or "image", 100), BytesIO(await image.read()))]

    async def read_images(images: Annotated[list[UploadFile], File(min_length=1, max_length=n)]) -> list[Named]:
        return [named for image in images for named in await read_image(image)]

    async def read_texts(request: Texts) -> list[Named]:
        return [(text, text) for text in request.texts]

    async def read_text(request: OneText) -> list[Named]:
        return [(request.text, request.text)]

    async def read_sets(request: Sets) -> list[Named]:
        return [(str(k), _array(vectors)) for k, vectors in enumerate(request.sets)]

    async def read_set(request: OneSet) -> list[Named]:
        return [("set", _array(request.vectors))]

    readers = {"images": (read_images, read_image), "texts": (read_texts, read_text), "arrays": (read_sets, read_set)}
    return readers[kind]


def _array(vectors: list[list[float]]) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # the preprocessing refuses infinity
            return np.array(vectors, np.float32)
    except ValueError:
        raise HTTPException(422, "vectors: expected the same number of numbers in all of a set") from None


def _explain(predictor: Predictor, name: str, value: Any) -> Explained | str:
    """Return an explanation, or why there is none."""
    try:
        found = explain_input(predictor, value, name=name)
    except UserError as error:
        return str(error)
    picture, places = "", []
    if isinstance(found, ImageExplanation):
        picture = base64.b64encode(encode_png(found.overlay())).decode()
    else:
        is_text = isinstance(found, TextExplanation)
        names = [piece for _, piece in found.pieces] if is_text else map(str, range(len(found.credit)))
        places = [Place(text=name, credit=credit) for name, credit in zip(names, found.credit, strict=True)]
    return Explained(
        prediction=Answer(**found.prediction._asdict()), caption=found.caption, places=places, picture=picture
    )


async def _show_wrong_input(_: Request, error: Exception) -> JSONResponse:
    """Say where a request is wrong, without the request itself, which may be long."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return JSONResponse({"detail": readable(f"{place}: {first['msg']}".removeprefix(": "), 300)}, 422)
