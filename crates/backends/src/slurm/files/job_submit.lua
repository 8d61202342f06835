-- Slurm's job_submit plugin of a site that has only Tandem's.
local tandem = dofile("@FOLDER@/tandem.lua")

function slurm_job_submit(job_desc, part_list, submit_uid)
	return tandem.submit(job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
	return tandem.modify(job_desc, job_rec, modify_uid)
end

return slurm.SUCCESS
