package ir

// group reads: group tp in 2 rank r.
func (p *parser) group(lead []string) bool {
	p.advance()
	name, ok := p.expect(tokIdent)
	if !ok {
		return false
	}
	g := &Group{Name: name.val, Pos: name.pos}
	if !p.word("in") || !p.integer(&g.Size) {
		return false
	}
	if p.at("rank") {
		p.advance()
		rank, ok := p.expect(tokIdent)
		if !ok {
			return false
		}
		g.Rank = rank.val
		p.dimSymbol(rank)
	}
	g.Trivia = p.close(lead)
	if !p.bad {
		p.b.AddGroup(g)
	}
	return true
}

// placements reads placements without commas between them: shard 1 over tp partial over dp. There may be
// no placement.
func (p *parser) placements() ([]Placement, bool) {
	var list []Placement
	for {
		kind := map[string]PlacementKind{"shard": Sharded, "partial": Partial, "varying": Varying}[p.tok.val]
		if p.tok.kind != tokIdent || kind == Replicated {
			return list, true
		}
		if len(list) == maxPlaced {
			p.errorAt(p.tok.pos, "more than %d placements", maxPlaced)
			return nil, false
		}
		place := Placement{Kind: kind}
		p.advance()
		if kind == Sharded {
			axis, ok := p.expect(tokInt)
			if !ok {
				return nil, false
			}
			if place.Axis = int(p.intValue(axis, false)); place.Axis > MaxRank {
				p.invalid(axis.pos, "axis %d of a placement: a type has at most %d", place.Axis, MaxRank)
			}
		}
		if !p.word("over") {
			return nil, false
		}
		group, ok := p.expect(tokIdent)
		if !ok {
			return nil, false
		}
		place.Group = group.val
		list = append(list, place)
	}
}
