-- Names RoCEv2's congestion notification packets where Wireshark (4.0, for one) calls their opcode unknown:
-- tshark -X lua_script:harness/packet/cnp.lua -r FILE
local opcode = Field.new("infiniband.bth.opcode")
local queue_pair = Field.new("infiniband.bth.destqp")
local cnp = Proto("roce_cnp", "RoCEv2 CNP")

function cnp.dissector(_, packet, tree)
    local found = opcode()
    if found and found.value == 0x81 then
        packet.cols.info = string.format("CNP QP=0x%06x", queue_pair().value)
        tree:add(cnp)
    end
end

register_postdissector(cnp)
