"""Rewards for runs that score in workers. This module imports nothing, so a worker that imports it starts quickly."""


def by_columns(completion: str, answer: str) -> float:
    return float(answer in completion)


def like_trl(prompts: list[str], completions: list[str], **columns: list[str]) -> list[float]:
    return [float(len(text) % 3) for text in completions]


def like_verl(data_source: str, solution_str: str, ground_truth: str, extra_info: object = None) -> dict[str, float]:
    return {"score": float(len(solution_str) % 3)}


class Callable:
    def __call__(self, completion: str) -> float:
        return float(len(completion) % 3)


def low_ids(completion_ids: list[int]) -> float:
    return sum(token < 20 for token in completion_ids) / len(completion_ids)
