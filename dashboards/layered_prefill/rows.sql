-- points: the study's serving points, a row per point and metric
select point_id, series, model_id as model, workload, arrival, rate_per_s as rate, scheduler, policy_params, hardware, coverage,
    n_seeds, metric, value, low, high
from serving_points where study = $study order by point_id, metric

-- attainment: shares of requests that meet both limits
select * exclude (study) from serving_attainment where study = $study order by all

-- iterations: the iterations of the drawn window
select * exclude (study) from serving_iterations where study = $study order by all

-- spans: what the requests of the drawn window did when
select * exclude (study) from serving_spans where study = $study order by all

-- tokens: when the tokens of drawn requests came
select * exclude (study) from serving_tokens where study = $study order by all

-- coverage: shares of a layer's experts that tokens touch together, by form and band of layers
select source, model_id as model, form, tokens_of, layer_band as band, n_tokens, coverage_frac as covered, low, high
from coverage_points where study = $study order by all
