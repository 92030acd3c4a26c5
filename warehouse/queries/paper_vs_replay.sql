-- Where a study answers a paper's claim: whose number is what, and how far off are we?
select claim_id, role, metric, setting, unit, paper, replay, band_low, band_high, rel_err, mode, study
from paper_vs_replay
order by role, claim_id, study, mode;
