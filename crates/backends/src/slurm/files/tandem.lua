-- Tandem's part of Slurm's job_submit plugin. It makes the GPU jobs of the partitions below wait for a licence
-- that the Tandem daemon keeps reserved, and marks them in admin_comment. While no such reservation exists, as
-- without a daemon, all jobs are left alone. Loaded by job_submit.lua; a site with its own plugin calls submit and
-- modify from it.

local tandem = {}

-- Partition = GPUs of its largest node.
tandem.partitions = { ["@PARTITION@"] = @GPUS@ }

-- The first word of the admin comment; the number is the version of its format.
local MARK = "tandem2"
-- The licence for which jobs wait, and the one for jobs without their GPU request.
local GATE, STRIPPED = "tandem_gate", "tandem_stripped"
-- Older versions merge a second request of GPUs with the first. There a job that may share waits without one.
local REPLACES = slurm.GRES_ONE_TASK_PER_SHARING ~= nil

-- Fields with a request of GPUs.
local GPU_FIELDS = { node = "tres_per_node", job = "tres_per_job", task = "tres_per_task", socket = "tres_per_socket" }

local function is_set(value)
	return value ~= nil and value ~= ""
end

-- A number; nil if the field is not set.
local function number(value)
	if type(value) ~= "number" or value == slurm.NO_VAL or value == slurm.NO_VAL16 or value >= 4294967294 then
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

-- Whether the daemon keeps a licence reserved at present.
local function is_reserved(licence)
	for _, reservation in pairs(slurm.reservations or {}) do
		local reserved = reservation.licenses or ""
		if reserved:find(licence .. ":", 1, true) and (reservation.end_time or 0) > os.time() then
			return true
		end
	end
	return false
end

-- The GPUs of a request such as "cpu:8,gres/gpu:2", and whether it names their type; nil if it has none.
local function gpus(request)
	for item in string.gmatch(request or "", "[^,]+") do
		local rest = item:gsub("^gres[:/]", ""):match("^gpu(.*)$")
		if rest ~= nil and not rest:find("^%w") then
			local count = rest:match("[:=](%d+)$")
			local is_typed = rest ~= "" and rest:match("^[:=]%d+$") == nil
			return tonumber(count or 1), is_typed
		end
	end
	return nil
end

-- The managed partition of a job that names one only.
local function managed(partition)
	return tandem.partitions[partition or ""] and partition or nil
end

-- Whether a managed partition is among those of a job.
local function includes_managed(partitions)
	for name in string.gmatch(partitions or "", "[^,]+") do
		if managed(name) then
			return true
		end
	end
	return false
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

-- Jobs that are Slurm's alone: parts of a heterogeneous job, those with a reservation of their own, and those that
-- can do with one of several licences.
local function is_left_to_slurm(job)
	return number(job.het_job_offset) ~= nil
		or is_set(job.reservation)
		or (job.licenses or ""):find("|", 1, true) ~= nil
end

-- What a job asks for: GPUs of a node and nodes; whether in a way that Tandem may change.
local function request(job)
	local nodes = math.max(number(job.min_nodes) or 1, 1)
	local tasks = number(job.num_tasks) or 1
	local kind, count, total
	local is_simple = true
	for name, field in pairs(GPU_FIELDS) do
		local wanted, is_typed = gpus(job[field])
		if wanted ~= nil then
			local of = name == "node" and wanted * nodes or name == "task" and wanted * tasks or wanted
			is_simple = is_simple and kind == nil and not is_typed and name ~= "socket"
			-- Items beside the GPUs, such as the CPUs of a task, would be lost.
			is_simple = is_simple and not job[field]:find(",", 1, true)
			kind, count, total = name, wanted, math.max(total or 0, of)
		end
	end
	is_simple = is_simple
		and not is_set(job.cpus_per_tres)
		and not is_set(job.mem_per_tres)
		and number(job.ntasks_per_tres) == nil
		and number(job.shared) ~= 0
	return kind, count, total, nodes, is_simple
end

-- Marks a job and makes it wait for a licence.
local function gate(job, licence, comment)
	job.admin_comment = comment
	job.licenses = (is_set(job.licenses) and job.licenses .. "," or "") .. licence .. ":1"
	return slurm.SUCCESS
end

function tandem.submit(job_desc, part_list, submit_uid)
	local partition = managed(job_desc.partition or default_partition(part_list))
	if partition == nil or is_left_to_slurm(job_desc) then
		return slurm.SUCCESS
	end
	for _, field in pairs(GPU_FIELDS) do
		if is_set(job_desc[field]) and job_desc[field]:find("shard", 1, true) then
			return refuse("Tandem: shares of GPUs in partition %s are given by Tandem; ask for --gres=gpu:1", partition)
		end
	end
	local kind, count, total, nodes, is_simple = request(job_desc)
	if kind == nil or total == 0 or not is_reserved(GATE) then
		return slurm.SUCCESS
	end
	local name = tag()
	if name == nil then
		return refuse("Tandem: slurmctld cannot read /dev/urandom; tell the operators")
	end
	local each = total / nodes
	local fixed = is_set(job_desc.req_nodes) and ":fixed" or ""
	local is_whole = is_simple and each == math.floor(each) and each <= tandem.partitions[partition]
	if is_whole and total == 1 and nodes == 1 and is_set(job_desc.script) then
		job_desc.min_nodes, job_desc.max_nodes = 1, 1
		for _, field in pairs(GPU_FIELDS) do
			if is_set(job_desc[field]) then
				job_desc[field] = ""
			end
		end
		if not REPLACES and is_reserved(STRIPPED) then
			return gate(job_desc, STRIPPED, string.format("%s:%s:1:1:stripped%s", MARK, name, fixed))
		end
		-- A request of this form can be changed to a share.
		job_desc.tres_per_node = REPLACES and "gres/gpu:1" or "gres:gpu:1"
		return gate(job_desc, GATE, string.format("%s:%s:1:1:%s%s", MARK, name, REPLACES and "share" or "slurm", fixed))
	end
	if is_whole and kind == "node" and fixed == "" then
		return gate(job_desc, GATE, string.format("%s:%s:%d:%d:whole", MARK, name, nodes, each))
	end
	local alone = number(job_desc.shared) == 0 and ":alone" or ""
	return gate(job_desc, GATE, string.format("%s:%s:%d:%d:slurm%s%s", MARK, name, nodes, math.ceil(each), fixed, alone))
end

-- Fields of a managed job that only operators and the daemon may change.
local PROTECTED = { "licenses", "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket", "partition", "req_nodes", "min_nodes", "max_nodes", "admin_comment" }
-- The same once it has been admitted to its GPU.
local PROTECTED_ADMITTED = { "exc_nodes", "features" }

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
		if is_changed(job_desc.partition) and includes_managed(job_desc.partition) then
			return refuse("Tandem: submit to the partition %s; jobs do not move there", job_desc.partition)
		end
		if includes_managed(job_rec.partition) then
			for _, field in pairs(GPU_FIELDS) do
				if is_changed(job_desc[field]) then
					return refuse("Tandem: cancel the job and submit it anew with its GPUs")
				end
			end
		end
		return slurm.SUCCESS
	end
	for _, field in ipairs(PROTECTED) do
		if is_changed(job_desc[field]) or (field == "licenses" and job_desc.licenses == "") then
			return refuse("Tandem: %s of this job is Tandem's to set; cancel it and submit it anew", field)
		end
	end
	if not (job_rec.licenses or ""):find("tandem_", 1, true) then
		for _, field in ipairs(PROTECTED_ADMITTED) do
			if is_changed(job_desc[field]) then
				return refuse("Tandem: %s of this job is Tandem's to set by now; cancel it and submit it anew", field)
			end
		end
	end
	return slurm.SUCCESS
end

return tandem
