-- Tandem's part of Slurm's cli_filter plugin, which runs in srun. A shared job has shards of a certain GPU in
-- place of the GPU that it asked for. Its steps ask for GPUs, by their own options or by those of sbatch in the
-- environment; here they get shards. All other programs, jobs and steps are left alone.

local tandem = {}

local PARTITION = "@PARTITION@"

local function is_set(value)
	return value ~= nil and value ~= "" and value ~= "unset"
end

-- The GPUs of a request such as "2", "gpu:2", "gres/gpu=2", "gpu:g1:2" or "gpu"; nil if it asks for none.
local function gpus_of(request)
	if not is_set(request) then
		return nil
	end
	local total
	for item in string.gmatch(request, "[^,]+") do
		local count
		if item:find("gpu", 1, true) then
			count = tonumber(item:match("[:=](%d+)$")) or 1
		elseif not item:find("[/=]") then
			-- An option that is about GPUs alone.
			count = tonumber(item:match("^(%d+)$") or item:match(":(%d+)$"))
		end
		if count ~= nil then
			total = (total or 0) + count
		end
	end
	return total
end

-- GPUs and shards on a node of the shared job that a step belongs to; nil if the job is none.
local function shared_job(options)
	local inside = os.getenv("SLURM_JOB_ID")
	local job = is_set(options.jobid) and options.jobid or inside
	if job == nil then
		return nil
	end
	if job == inside then
		local shards = tonumber(os.getenv("SLURM_SHARDS_ON_NODE"))
		if shards == nil or os.getenv("SLURM_JOB_PARTITION") ~= PARTITION then
			return nil
		end
		return tonumber(os.getenv("SLURM_GPUS_ON_NODE")) or 1, shards
	end
	-- A step that joins a job from outside does not have the job's environment.
	if not job:match("^%d+$") then
		return nil
	end
	local answer = io.popen("squeue --noheader --jobs=" .. job .. " --format='%P %b' 2>/dev/null")
	if answer == nil then
		return nil
	end
	local partition, request = (answer:read("*l") or ""):match("^(%S+) (%S+)")
	answer:close()
	local shards = request and tonumber(request:match("^gres[:/]shard:[^,:]+:(%d+)$"))
	if partition ~= PARTITION or shards == nil then
		return nil
	end
	return 1, shards
end

-- With shards, a binding to GPUs hides all of them. Whether it could be taken back.
local function unbind(options, tasks)
	if is_set(options["tres-bind"]) then
		options["tres-bind"] = "gres/shard:none"
	elseif is_set(options["gpu-bind"]) then
		-- Before 23.02. There, the tasks of such a step crash if they are several.
		options["gpu-bind"] = "none"
		return tasks == 1
	end
	return true
end

local GPU_OPTIONS = { "gpus", "gpus-per-node", "gpus-per-task", "tres-per-task" }

local function clear(options)
	for _, name in ipairs(GPU_OPTIONS) do
		if gpus_of(options[name]) ~= nil then
			options[name] = ""
		end
	end
end

function tandem.pre_submit(options)
	-- Requests without GPUs, such as none, need no change.
	local is_ours = options.type == "srun" and (not is_set(options.gres) or gpus_of(options.gres) ~= nil)
	local gpus, shards
	if is_ours then
		gpus, shards = shared_job(options)
	end
	if gpus == nil then
		return slurm.SUCCESS
	end
	local nodes = tonumber(options.nodes) or tonumber(os.getenv("SLURM_JOB_NUM_NODES")) or 1
	local tasks = tonumber(options.ntasks) or nodes
	local each = math.floor(shards / gpus)
	local per_task = gpus_of(options["gpus-per-task"]) or gpus_of(options["tres-per-task"])
	local wanted = math.max(
		gpus_of(options.gres) or 0,
		gpus_of(options["gpus-per-node"]) or 0,
		math.ceil((gpus_of(options.gpus) or 0) / nodes),
		(per_task or 0) * math.ceil(tasks / nodes)
	)
	if wanted > gpus then
		-- More than the job has: Slurm refuses the step, as it would that of any job.
		return slurm.SUCCESS
	end
	clear(options)
	if per_task == 1 and gpus > 1 then
		options["tres-per-task"] = "gres/shard:" .. each
		options["gres-flags"] = "one-task-per-sharing"
		return slurm.SUCCESS
	end
	if not unbind(options, tasks) then
		slurm.log_error("Tandem: all tasks of this job use the same GPU; leave out --gpu-bind")
		return slurm.ERROR
	end
	-- One shard leaves the others to the job's other steps.
	options.gres = "shard:" .. (gpus == 1 and 1 or each * (wanted > 0 and wanted or gpus))
	return slurm.SUCCESS
end

return tandem
