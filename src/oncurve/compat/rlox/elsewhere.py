"""What rlox 1.2 exports and oncurve does not have, with the reason and what to do."""

from __future__ import annotations

CONTROL = "it is for control tasks with an environment of observations and actions; keep rlox for them"
BUFFER = "it stores transitions of control tasks; keep rlox for them"
DATA = "batches of completions are packed by oncurve itself (learner.tokens_per_micro_batch)"
PREFERENCES = "it trains on pairs of completions; oncurve learns from rewards, or trains a reward model on such pairs"
TRACKERS = "write an object with on_train_step(step, metrics), or set [tracking] in a recipe (docs/tracking.md)"
RUNS = "a run is oncurve.train(...) or `oncurve train`, which take a recipe, or rlox's YAML by --config"

_REASONS = {
    "PPO SAC DQN TD3 A2C TRPO MAPPO DreamerV3 IMPALA VPG CQL IQL TD3BC BC AWR MPO QMIX CalQL DTP HybridPPO "
    "DecisionTransformer DiffusionPolicy PPOConfig SACConfig DQNConfig TD3Config A2CConfig TRPOConfig MAPPOConfig "
    "DreamerV3Config IMPALAConfig VPGConfig CartPole VecEnv GymEnv GymVecEnv VecNormalize ContinuousPolicy "
    "DiscretePolicy AsymmetricPolicy ActorCritic CandleCollector RolloutCollector RolloutBatch OffPolicyCollector "
    "RunningStats RunningStatsVec EmaRunningStats CusumDetector random_shift_batch shape_rewards_pbrs "
    "compute_goal_distance_potentials reptile_update average_weight_vectors compute_vtrace PPOTrainer SACTrainer "
    "DQNTrainer A2CTrainer TD3Trainer MAPPOTrainer DreamerV3Trainer IMPALATrainer VideoRecordingCallback "
    "ALGORITHM_REGISTRY PPOLoss": CONTROL,
    "ExperienceTable ReplayBuffer PrioritizedReplayBuffer MmapReplayBuffer OfflineDatasetBuffer SequenceReplayBuffer "
    "HERBuffer py_sample_mixed": BUFFER,
    "VarLenStore pack_sequences": DATA,
    "DPO OnlineDPO DPOPair": PREFERENCES,
    "BestOfN": "oncurve eval --n measures pass@n and maj@n of a model",
    "WandbLogger TensorBoardLogger TerminalDashboard HTMLReport": TRACKERS,
    "EvalCallback": "it steps an environment; call evaluate(prompts) in an on_step of your own",
    "CheckpointCallback": "call algo.save(path) in an on_step of your own",
    "ProgressBarCallback TimingCallback": "train returns time/... with its metrics; an on_step can show them",
    "Trainer TrainingConfig train_from_config": RUNS,
}


def reason(name: str) -> str | None:
    """Why oncurve does not have rlox's `name`; None: rlox has no such name, or oncurve has it."""
    return next((why for names, why in _REASONS.items() if name in names.split()), None)


NAMES = tuple(name for names in _REASONS for name in names.split())
"""All of them."""
