# On CPUs:     docker build -t oncurve .
# With CUDA:   docker build -t oncurve --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .   (not run yet)
FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /oncurve
COPY . .
RUN version=$(sed -n 's/^torch==//p' constraints.txt) \
    && pip install --no-cache-dir "torch==$version" --index-url "$TORCH_INDEX" \
    && pip install --no-cache-dir -c constraints.txt ".[view,endpoint]" \
    && useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["oncurve"]
CMD ["--help"]
