-- Where a study answers a paper's claim: whose number is what, and how far off are we?
select claim_id, role, metric, setting, unit, paper, replay, rel_err, study
from paper_vs_replay
order by role, claim_id, study, replay_id;
