-- Slurm's cli_filter plugin of a site that has only Tandem's. Complete, because slurmctld of a configless site
-- sends this file alone to nodes.
local tandem = (function()
@STEPS@
end)()

function slurm_cli_setup_defaults(options, early)
	return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
	return tandem.pre_submit(options)
end

function slurm_cli_post_submit(offset, job_id, step_id)
	return slurm.SUCCESS
end

return slurm.SUCCESS
