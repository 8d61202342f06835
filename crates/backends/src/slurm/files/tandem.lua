-- Tandem's part of Slurm's job_submit plugin. It holds the GPU jobs of the partitions below until the Tandem
-- daemon places them, and keeps their GPU request in admin_comment. All other jobs are left alone. Loaded by
-- job_submit.lua; a site with its own plugin calls submit and modify from it.

local tandem = {}

-- Partition = GPUs of its largest node.
tandem.partitions = { ["@PARTITION@"] = @GPUS@ }

-- The first word of the admin comment; the number is the version of its format.
local MARK = "tandem1"

local function is_set(value)
	return value ~= nil and value ~= ""
end

-- A number; nil if the field is not set.
local function number(value)
	if value == nil or value == slurm.NO_VAL or value == slurm.NO_VAL16 then
		return nil
	end
	return value
end

-- A unique tag: slurmctld reuses job ids after an untimely crash.
local function tag()
	local file = io.open("/dev/urandom", "rb")
	if file == nil then
		return nil
	end
	local bytes = file:read(8)
	file:close()
	local hex = {}
	for at = 1, #bytes do
		hex[at] = string.format("%02x", bytes:byte(at))
	end
	return table.concat(hex)
end

-- The number of GPUs of a request such as "gres:gpu:2"; nil if it has none, false if it cannot be read.
local function gpus(request)
	if not is_set(request) then
		return nil
	end
	local text = request:gsub("^gres[:/]", "")
	if not text:find("gpu", 1, true) then
		return nil
	end
	local count = text:match("^gpu$") and "1" or text:match("^gpu[:=](%d+)$")
	return tonumber(count) or false
end

-- The managed partition among those of a job, which may name several.
local function managed(partition)
	for name in string.gmatch(partition or "", "[^,]+") do
		if tandem.partitions[name] then
			return name
		end
	end
	return nil
end

local function refuse(...)
	slurm.log_user(...)
	return slurm.ERROR
end

-- The partition of a job that names none.
local function default_partition(part_list)
	for name, partition in pairs(part_list or {}) do
		if partition.flag_default ~= 0 then
			return name
		end
	end
	return nil
end

function tandem.submit(job_desc, part_list, submit_uid)
	local partition = managed(job_desc.partition or default_partition(part_list))
	if partition == nil then
		return slurm.SUCCESS
	end
	local kind, count
	for name, field in pairs({ node = "tres_per_node", job = "tres_per_job", task = "tres_per_task", socket = "tres_per_socket" }) do
		local wanted = gpus(job_desc[field])
		if wanted == false then
			return refuse("Tandem: GPUs of partition %s are asked for by number only, as in --gres=gpu:2; other kinds go by --constraint", partition)
		elseif wanted ~= nil then
			if kind ~= nil or name == "socket" then
				return refuse("Tandem: ask for GPUs in one way: --gres=gpu:N, --gpus=N or --gpus-per-task=N")
			end
			kind, count = name, wanted
		elseif is_set(job_desc[field]) and job_desc[field]:find("shard", 1, true) then
			return refuse("Tandem: shares of GPUs in partition %s are given by Tandem; ask for --gres=gpu:1", partition)
		end
	end
	if kind == nil or count == 0 then
		return slurm.SUCCESS
	end
	if job_desc.partition ~= nil and job_desc.partition:find(",", 1, true) then
		return refuse("Tandem: name partition %s alone", partition)
	end
	local size = tandem.partitions[partition]
	local nodes = number(job_desc.min_nodes) or 1
	local tasks = number(job_desc.num_tasks) or 1
	local total = kind == "node" and count * nodes or kind == "task" and count * tasks or count
	if nodes < 1 then
		nodes = 1
	end
	if kind ~= "node" and nodes == 1 and total > size then
		nodes = math.ceil(total / size)
	end
	local each = total / nodes
	if each ~= math.floor(each) or each > size then
		return refuse("Tandem: %d GPUs do not divide among nodes of %d; ask with --nodes and --gres=gpu:N", total, size)
	end
	local name = tag()
	if name == nil then
		return refuse("Tandem: slurmctld cannot read /dev/urandom; tell the operators")
	end
	job_desc.admin_comment = string.format("%s:%s:%d:%d:%s:%d", MARK, name, nodes, each, kind, count)
	job_desc.tres_per_node = ""
	job_desc.tres_per_job = ""
	job_desc.tres_per_task = ""
	job_desc.min_nodes = nodes
	job_desc.max_nodes = nodes
	job_desc.priority = 0
	job_desc.requeue = 1
	return slurm.SUCCESS
end

-- Fields of a managed job that only operators and the daemon may change.
local PROTECTED = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket", "req_nodes", "exc_nodes", "partition", "min_nodes", "max_nodes", "admin_comment", "features" }
-- Fields that would turn a job into a GPU job after its submission.
local GPU_FIELDS = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }

local function is_changed(value)
	if type(value) == "number" then
		value = number(value)
	end
	return value ~= nil and value ~= ""
end

function tandem.modify(job_desc, job_rec, modify_uid)
	-- Root and SlurmUser are the operators and the daemon.
	if modify_uid == 0 or modify_uid == @SLURM_UID@ then
		return slurm.SUCCESS
	end
	local comment = job_rec.admin_comment or ""
	if comment:sub(1, #MARK + 1) ~= MARK .. ":" then
		if is_changed(job_desc.partition) and managed(job_desc.partition) then
			return refuse("Tandem: submit to partition %s; jobs do not move there", job_desc.partition)
		end
		if managed(job_rec.partition) then
			for _, field in ipairs(GPU_FIELDS) do
				if is_changed(job_desc[field]) then
					return refuse("Tandem: cancel the job and submit it anew with its GPUs")
				end
			end
		end
		return slurm.SUCCESS
	end
	local priority = number(job_desc.priority)
	if priority ~= nil and priority > 0 then
		return refuse("Tandem: releases this job when it has a place for it")
	end
	for _, field in ipairs(PROTECTED) do
		if is_changed(job_desc[field]) then
			return refuse("Tandem: %s of this job is Tandem's to set; cancel it and submit it anew", field)
		end
	end
	return slurm.SUCCESS
end

return tandem
