# With a GPU:     docker build -t tilescope .                         docker run --gpus all -p 7860:7860 tilescope
# Without one:    docker build -t tilescope --build-arg TORCH=cpu .   docker run -p 7860:7860 tilescope
# With a volume for results:                                          docker run -v tilescope:/data ...
FROM python:3.12-slim

# Triton builds its launchers with it.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY requirements.lock requirements.txt ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
ARG TORCH=cuda
RUN if [ "$TORCH" = cpu ]; then export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu; fi \
    && pip install --no-cache-dir -r requirements.txt

COPY app.py LICENSE ./
COPY kernels kernels
COPY tilescope tilescope
COPY visualize visualize
COPY docs/glossary.md docs/glossary.md

# The application belongs to root and is read-only for the page; compiled kernels and results go to /data.
RUN useradd --uid 1000 --no-create-home --home-dir /nonexistent tilescope && install -d -o 1000 /data
USER 1000
VOLUME /data
ENV TILESCOPE_CACHE=/data GRADIO_SERVER_NAME=0.0.0.0 GRADIO_SERVER_PORT=7860 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
EXPOSE 7860
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:' + os.environ['GRADIO_SERVER_PORT'] + '/healthz', timeout=5)"]
CMD ["python", "app.py"]
