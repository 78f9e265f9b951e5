# SPDX-License-Identifier: Apache-2.0
"""The upstream launchers that the fork can replace, as vLLM 0.28.0 has them.

A declaration only: importing it imports neither vLLM nor torch.
"""

from dataclasses import dataclass

HOSTVEC = "KUNLUN_HOSTVEC"
POSTUPDATE = "KUNLUN_HOSTVEC_POSTUPDATE"
DFLASH_VEC = "KUNLUN_DFLASH_VEC"
REJ_XPU = "KUNLUN_REJ_XPU"

_GPU = "vllm.v1.worker.gpu."


@dataclass(frozen=True)
class Site:
    """One launcher.

    `ids` are the Triton kernels that it launches, as numbered by the project.
    `signature` has parameter names and defaults only (see `dispatch.signature`).
    `switch` turns the site off; None: it follows KUNLUN_KERNELS alone.
    `impl` is the module below `launchers` (and `reference`) that implements it,
    by a function of the same name; a method takes `self` or `cls` first. `variants` are
    (switch, function): the function of that module that runs while it is off.
    `when_greedy` is the function that computes the same, for less, where the host
    knows that every row of the batch is greedy (KUNLUN_GUMBEL_GREEDY).
    """

    ids: tuple[int, ...]
    module: str
    qualname: str
    signature: str
    switch: str | None
    impl: str
    variants: tuple[tuple[str, str], ...] = ()
    when_greedy: str | None = None

    @property
    def name(self) -> str:
        return self.qualname.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


SITES = (
    Site(
        (0,),
        _GPU + "block_table",
        "BlockTables.gather_block_tables",
        "(self, idx_mapping, num_reqs_padded, out=None, out_ptrs=None)",
        HOSTVEC,
        "block_table",
    ),
    Site(
        (1,),
        _GPU + "block_table",
        "BlockTables.compute_slot_mappings",
        "(self, idx_mapping, query_start_loc, positions, num_tokens_padded, out=None)",
        HOSTVEC,
        "block_table",
    ),
    Site(
        (2,),
        _GPU + "buffer_utils",
        "StagedWriteTensor.apply_write",
        "(self)",
        HOSTVEC,
        "buffer_utils",
    ),
    Site(
        (3,),
        _GPU + "buffer_utils",
        "FusedStagedWriter.apply",
        "(self, tensors, output_ptrs, output_strides)",
        HOSTVEC,
        "buffer_utils",
    ),
    Site(
        (4,),
        _GPU + "cp_utils",
        "prepare_dcp_local_seq_lens",
        "(dcp_local_seq_lens, seq_lens, num_reqs, dcp_size, dcp_rank, cp_interleave)",
        HOSTVEC,
        "cp_utils",
    ),
    Site(
        (5,),
        _GPU + "input_batch",
        "prepare_prefill_inputs",
        "(input_ids, next_prefill_tokens, idx_mapping, query_start_loc, "
        "all_token_ids, prefill_len, num_computed_tokens)",
        HOSTVEC,
        "input_batch",
    ),
    Site(
        (6,),
        _GPU + "input_batch",
        "prepare_pos_seq_lens",
        "(idx_mapping, query_start_loc, num_computed_tokens, pos, seq_lens)",
        HOSTVEC,
        "input_batch",
    ),
    Site(
        (7,),
        _GPU + "input_batch",
        "combine_sampled_and_draft_tokens",
        "(input_ids, idx_mapping, last_sampled_tokens, query_start_loc, "
        "seq_lens, prefill_len, draft_tokens, cu_num_logits, num_logits, "
        "num_new_sampled_tokens=1)",
        HOSTVEC,
        "input_batch",
    ),
    Site(
        (8,),
        _GPU + "input_batch",
        "get_num_sampled_and_rejected",
        "(num_sampled, seq_lens, cu_num_logits, idx_mapping, prefill_len)",
        HOSTVEC,
        "input_batch",
    ),
    Site(
        (9,),
        _GPU + "input_batch",
        "post_update",
        "(idx_mapping, num_computed_tokens, last_sampled_tokens, "
        "output_bin_counts, sampled_tokens, num_sampled, num_rejected, "
        "query_start_loc, all_token_ids, total_len)",
        POSTUPDATE,
        "input_batch",
        variants=(("KUNLUN_POSTUPD3", "post_update_compact"),),
    ),
    Site(
        (10,),
        _GPU + "input_batch",
        "post_update_num_computed_tokens",
        "(idx_mapping, num_computed_tokens, query_start_loc)",
        HOSTVEC,
        "input_batch",
    ),
    Site(
        (11,),
        _GPU + "input_batch",
        "expand_idx_mapping",
        "(idx_mapping, total_num_logits, cu_num_logits, max_expand_len)",
        HOSTVEC,
        "input_batch",
    ),
    Site(
        (12,),
        _GPU + "metrics.logits",
        "get_num_nans",
        "(logits)",
        None,
        "metrics_logits",
    ),
    Site(
        (13,),
        _GPU + "mm.rope",
        "RopeState.prepare_positions",
        "(self, idx_mapping, query_start_loc, prefill_lens, num_computed_tokens)",
        None,
        "mm_rope",
    ),
    Site(
        (14,),
        _GPU + "model_states.mamba_hybrid",
        "MambaHybridModelState.preprocess_state",
        "(self, input_batch, block_tables, kv_cache_config, num_computed_tokens)",
        None,
        "mamba_hybrid",
    ),
    Site(
        (15,),
        _GPU + "model_states.mamba_hybrid",
        "MambaHybridModelState.postprocess_state",
        "(self, idx_mapping, num_sampled, num_computed_tokens=None)",
        None,
        "mamba_hybrid",
    ),
    Site(
        (16,),
        _GPU + "sample.bad_words",
        "apply_bad_words",
        "(logits, expanded_idx_mapping, bad_word_token_ids, bad_word_offsets, "
        "num_bad_words, all_token_ids, prompt_len, total_len, input_ids, "
        "expanded_local_pos, max_num_bad_words)",
        None,
        "sample_bad_words",
    ),
    Site(
        (17,),
        _GPU + "sample.gumbel",
        "apply_temperature",
        "(logits, expanded_idx_mapping, temperature)",
        None,
        "sample_gumbel",
    ),
    Site(
        (18,),
        _GPU + "sample.gumbel",
        "gumbel_sample",
        "(logits, expanded_idx_mapping, temperature, seed, pos, "
        "apply_temperature, logits_cache=None, logits_cache_col=None, use_fp64=False)",
        None,
        "sample_gumbel",
        when_greedy="gumbel_sample_greedy",
    ),
    Site(
        (19,),
        _GPU + "sample.logit_bias",
        "apply_logit_bias",
        "(logits, expanded_idx_mapping, pos, num_allowed_token_ids, "
        "allowed_token_ids, num_logit_bias, logit_bias_token_ids, logit_bias, "
        "min_lens, num_stop_token_ids, stop_token_ids)",
        None,
        "sample_logit_bias",
    ),
    Site(
        (20,),
        _GPU + "sample.logprob",
        "compute_token_logprobs",
        "(logits, token_ids)",
        None,
        "sample_logprob",
    ),
    Site(
        (21, 22),
        _GPU + "sample.logprob",
        "compute_topk_scores",
        "(logits, num_logprobs, sampled_token_ids, cu_num_logits=None, "
        "logprob_token_ids_state=None, expanded_idx_mapping=None, "
        "max_per_req_token_ids=0, logits_mode=False)",
        None,
        "sample_logprob",
    ),
    Site(
        (23,),
        _GPU + "sample.min_p",
        "apply_min_p",
        "(logits, expanded_idx_mapping, min_p)",
        None,
        "sample_min_p",
    ),
    Site(
        (24,),
        _GPU + "sample.penalties",
        "apply_penalties",
        "(logits, expanded_idx_mapping, token_ids, expanded_local_pos, "
        "repetition_penalty, frequency_penalty, presence_penalty, "
        "prompt_bin_mask, output_bin_counts)",
        None,
        "sample_penalties",
    ),
    Site(
        (25,),
        _GPU + "sample.penalties",
        "bincount",
        "(expanded_idx_mapping, all_token_ids, prompt_len, prefill_len, "
        "prompt_bin_mask, output_bin_counts, max_prefill_len)",
        None,
        "sample_penalties",
    ),
    Site(
        (26,),
        _GPU + "sample.prompt_logprob",
        "get_prompt_logprobs_token_ids",
        "(num_tokens, query_start_loc, idx_mapping, num_computed_tokens, all_token_ids)",
        None,
        "sample_prompt_logprob",
    ),
    Site(
        (27,),
        _GPU + "spec_decode.autoregressive.speculator",
        "prepare_prefill_inputs",
        "(last_token_indices, current_draft_step, input_buffers, input_batch, "
        "num_sampled, num_rejected, last_sampled, next_prefill_tokens, "
        "max_num_reqs)",
        DFLASH_VEC,
        "spec_decode_autoregressive",
    ),
    Site(
        (28,),
        _GPU + "spec_decode.autoregressive.speculator",
        "prepare_decode_inputs",
        "(draft_tokens, target_seq_lens, num_rejected, input_buffers, "
        "max_model_len, max_num_reqs, advance_draft_positions=True)",
        DFLASH_VEC,
        "spec_decode_autoregressive",
    ),
    Site(
        (29,),
        _GPU + "spec_decode.autoregressive.speculator",
        "update_draft_inputs",
        "(draft_tokens, current_draft_step, hidden_states, output_draft_tokens, "
        "next_input_hidden_states, input_buffers, num_reqs, max_model_len, "
        "num_speculative_steps, advance_draft_positions=True)",
        DFLASH_VEC,
        "spec_decode_autoregressive",
    ),
    Site(
        (30,),
        _GPU + "spec_decode.dflash.speculator",
        "prepare_dflash_inputs",
        "(input_buffers, query_slot_mapping, context_positions, "
        "context_slot_mapping, sample_indices, sample_pos, sample_idx_mapping, "
        "temperature, seeds, input_batch, num_sampled, num_rejected, "
        "last_sampled, next_prefill_tokens, input_temperature, input_seeds, "
        "block_table, block_size, "
        "parallel_drafting_token_id, num_query_per_req, num_speculative_steps, "
        "max_num_reqs, max_num_tokens, max_model_len, sample_from_anchor=False)",
        DFLASH_VEC,
        "spec_decode_dflash",
    ),
    Site(
        (31,),
        _GPU + "spec_decode.rejection_sampler",
        "RejectionSampler._get_logprobs_tensors",
        "(self, sampled, num_sampled, logits, cu_num_logits, cu_num_logits_np, max_num_logprobs)",
        REJ_XPU,
        "spec_decode_rejection_sampler",
    ),
    Site(
        (32, 33, 34, 35, 36, 37),
        _GPU + "spec_decode.rejection_sampler_utils",
        "rejection_sample",
        "(target_logits, draft_logits, draft_sampled, cu_num_logits, pos, "
        "idx_mapping, expanded_idx_mapping, expanded_local_pos, temperature, "
        "seed, num_speculative_steps, synthetic_conditional_rates=None, "
        "use_fp64=False, use_block_verification=False)",
        REJ_XPU,
        "spec_decode_rejection_sampler_utils",
        when_greedy="rejection_sample_greedy",
    ),
    Site(
        (38,),
        _GPU + "structured_outputs",
        "StructuredOutputsWorker.apply_grammar_bitmask",
        "(self, logits, input_batch, grammar_req_ids, grammar_bitmask)",
        None,
        "structured_outputs",
    ),
    Site(
        (39,),
        "vllm.v1.sample.ops.topk_topp_triton",
        "apply_top_k_top_p_triton",
        "(logits, k, p, mask_value=-inf)",
        None,
        "topk_topp_triton",
    ),
    Site(
        (40,),
        "vllm.v1.worker.utils",
        "KVBlockZeroer.zero_block_ids",
        "(self, block_ids)",
        None,
        "worker_utils",
    ),
    Site(
        (41,),
        "vllm.v1.worker.mamba_utils",
        "MambaSpecDecodeGPUContext.run_fused_postprocess",
        "(self, num_reqs, num_accepted_tokens_gpu, mamba_state_idx_gpu, "
        "num_scheduled_tokens_gpu, num_computed_tokens_gpu, "
        "num_draft_tokens_gpu)",
        None,
        "mamba_utils",
    ),
    Site(
        (42,),
        "vllm.v1.worker.mamba_utils",
        "MambaSpecDecodeGPUContext.run_fused_postprocess_align",
        "(self, num_reqs, num_accepted_tokens_gpu, state_idx_gpu, new_num_computed_tokens_gpu, idx_mapping)",
        None,
        "mamba_utils",
    ),
    Site(
        (43,),
        "vllm.v1.worker.mamba_utils",
        "MambaSpecDecodeGPUContext.run_fused_precopy",
        "(self, num_reqs, state_idx_gpu, src_col_gpu, token_bias_gpu, idx_mapping)",
        None,
        "mamba_utils",
    ),
    Site(
        (44,),
        "vllm.v1.worker.mamba_utils",
        "batch_memcpy",
        "(src_ptrs, dst_ptrs, sizes)",
        None,
        "mamba_utils",
    ),
    Site(
        (53, 54),
        _GPU + "sample.thinking_budget",
        "apply_thinking_budget",
        "(logits, req_ids, expanded_idx_mapping, thinking_token_budget, "
        "all_token_ids, total_len, input_ids, expanded_local_pos, "
        "cached_last_start, cached_last_end, cached_scan_pos, "
        "reasoning_start_token_ids, natural_reasoning_end_token_ids, "
        "reasoning_end_token_ids)",
        None,
        "sample_thinking_budget",
    ),
    Site(
        (55,),
        _GPU + "sample.output",
        "SamplingMaskTensors.from_logits",
        "(cls, logits, num_sampled_tokens)",
        None,
        "sample_output",
    ),
    Site(
        (56,),
        _GPU + "spec_decode.dflash2.speculator",
        "DFlash2Speculator._sample_path",
        "(self, candidate_ids, scores, num_reqs)",
        None,
        "spec_decode_dflash2",
    ),
    Site(
        (57,),
        _GPU + "spec_decode.dflash2.speculator",
        "DFlash2Speculator._cache_draft_logits",
        "(self, candidate_ids, num_sample)",
        None,
        "spec_decode_dflash2",
    ),
    # Refused: the six kernels of this speculator have no launchers of the fork.
    Site(
        (58, 59, 60, 61, 62, 63),
        _GPU + "spec_decode.multi_module_mtp.speculator",
        "MultiModuleMTPSpeculator.load_draft_model",
        "(self, target_model, target_attn_layer_names)",
        None,
        "spec_decode_multi_module_mtp",
    ),
)

# Modules that rebind names of the modules above when they load: what they leave
# there is upstream's too, and is bound again after them.
REBINDERS = {"vllm.v1.worker.cpu.shm": (_GPU + "buffer_utils",)}
