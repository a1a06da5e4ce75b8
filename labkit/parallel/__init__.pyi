# What the room offers, and where it is: read by type checkers, and by `lazy_loader` at run time.
from .checkpointing import checkpoint as checkpoint, checkpoint_blocks as checkpoint_blocks
from .context.parallel import ContextParallel as ContextParallel
from .data.buckets import Bucket as Bucket
from .data.hooks import all_reduce_hook as all_reduce_hook, bf16_hook as bf16_hook
from .data.sampler import Sampler as Sampler
from .data.wrapper import DataParallel as DataParallel
from .embedding.sharded import ShardedEmbedding as ShardedEmbedding, ShardedEmbeddings as ShardedEmbeddings
from .embedding.table import TableConfig as TableConfig
from .emulated_gpu import EmulatedGpu as EmulatedGpu, Speeds as Speeds
from .expert.parallel import ExpertParallel as ExpertParallel
from .flat import Flat as Flat, Piece as Piece
from .fsdp.deferred import deferred as deferred
from .fsdp.fully_shard import FullyShard as FullyShard
from .hybrid.config import HybridConfig as HybridConfig
from .hybrid.hybrid import Hybrid as Hybrid
from .hybrid.trial import try_plan as try_plan
from .layout import Layout as Layout
from .mesh import Mesh as Mesh
from .pipeline.running.pipeline import Pipeline as Pipeline
from .server.client import Client as Client
from .server.server import Server as Server
from .stand_in import Kernels as Kernels, kernels as kernels
from .tensor.block import TensorParallelBlock as TensorParallelBlock
from .tensor.gpt import TensorParallelGPT as TensorParallelGPT
from .tensor.linear import ColumnParallelLinear as ColumnParallelLinear, RowParallelLinear as RowParallelLinear
from .vocab import VocabParallelEmbedding as VocabParallelEmbedding
from .vocab_loss import vocab_parallel_cross_entropy as vocab_parallel_cross_entropy
from .zero.adamw import AdamW as AdamW
from .zero.stage3 import ZeRO3 as ZeRO3
from .zero.stages import ZeRO1 as ZeRO1, ZeRO2 as ZeRO2
