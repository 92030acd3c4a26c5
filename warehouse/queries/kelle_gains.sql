-- What do eviction, recomputation and embedded DRAM gain over SRAM with the full cache, by model and workload, in each reading?
select model_id, workload, batch, system, budget_tokens, mode, round(1e3 * step_s, 1) as step_ms, round(energy_j / batch, 4) as j_per_token,
    round(speed_gain, 3) as speed_gain, round(energy_gain, 3) as energy_gain, round(refresh_j / energy_j, 3) as refresh_frac,
    dram_overflow_bytes > 0 as is_beyond_dram
from kelle_points
where series = 'headline'
order by model_id, workload, mode, speed_gain, system;
