# syntax=docker/dockerfile:1
# tokentape with everything as uv.lock has it, and torch of that version built for the CPU. Runs as a user; what it makes lies in /work.
FROM python:3.11-slim AS build
RUN pip install --no-cache-dir uv==0.13.9
ENV VIRTUAL_ENV=/opt/tokentape UV_LINK_MODE=copy UV_NO_CACHE=1
WORKDIR /src
COPY pyproject.toml uv.lock ./
RUN uv venv "$VIRTUAL_ENV" \
 && uv export --quiet --frozen --extra all --no-emit-project --prune torch --output-file locked.txt \
 && uv pip install --torch-backend cpu "torch==$(sed -n '/^name = "torch"$/{n;s/version = "\(.*\)"/\1/p;}' uv.lock)" \
 && uv pip install --no-deps --require-hashes -r locked.txt
COPY . .
RUN uv pip install --no-deps .

FROM python:3.11-slim
RUN useradd --create-home --uid 1000 tokentape && install -d -o tokentape /work
COPY --from=build /opt/tokentape /opt/tokentape
# hadolint ignore=DL3064
ENV PATH=/opt/tokentape/bin:$PATH TOKENTAPE_STORE=/work/tape
USER 1000
WORKDIR /work
ENTRYPOINT ["tokentape"]
CMD ["--help"]
