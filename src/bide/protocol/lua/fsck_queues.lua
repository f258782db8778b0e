-- fsck_queues: check the list of queues.

if fsck.is_hash(queues) then
  fsck.hash(queues, function(name, at)
    if not string.find(name, '^[^%s%c{}]+$') or #name > 128 then
      if fsck.tell('queues', name, 'is not a valid name of a queue', 'is removed') then
        redis.call('HDEL', queues, name)
      end
    elseif not fsck.moment(at, 0, now + fsck.DAY) and fsck.tell('queues', name,
      'the time of its first use is invalid: ' .. string.sub(at, 1, 40), 'becomes now') then
      redis.call('HSET', queues, name, now)
    end
  end)
end
return fsck.reply()
