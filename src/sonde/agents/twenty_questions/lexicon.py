"""Which words of a question ask for which attribute of the table.

Each table maps an attribute to the phrases that ask for it, in the frame the table is for: after "does it have", after
"made of", and so on. A minus sign before an attribute turns it round; a sharp sign marks one that is worked out from
size and weight. Words are in the singular; articles and other small words are left out.
"""

from collections.abc import Mapping

Phrases = Mapping[tuple[str, ...], str]


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


DETERMINERS = word_set("a an the some your my any")
MEASURES = word_set("pair kind type sort piece item form bar loaf slice bit set")

# Words that are no names in the table and are one letter away from one that is: never taken for a misspelt name.
LOOKALIKES = word_set("""abridge adder badder ballet banana bandana banker banket basher basked basket battle better billow bitten bladder
    blanked blanker boaster booker bookie booster bottled bracket bride bridle bridged buckling bumpkin cameo carrot canter cantle capet caret
    carpal carped carpel casket caste castled cattle candled cheery cheesy chipper choker chomper chopped chicken closed closer closes coaster cocker
    coffer commuter compute computed cooked cookery cooler cooper cootie copper corker creese cropper crumpet cuttle dandle diddle donkey
    ducking earthwork erase erased fetter fiddler fidget flatter flower fountain fraser fringe gadder galleon galloon gasket getter gladder grange guzzle
    hammed hamper handle hamster harmer hatched hatcher hemmer hooker hopper hooter housecoat hovel hover hummer hurtle jacked jammer
    kitted kindle lander larder larger lasher latchet latter ladle lecher leather liter litter looker madder mallet manager market mettle middle
    minor mobil money monk mortar motile mottle muzzle nettle netter nestle nozzle nuzzle onions orang packet pallet palette parry
    penciled pester petter pickle piddle pigeons piston planet poodle potable pottle puddle puzzled puzzler rabbi racked rambler rammer range
    ranger rascal rasher ratchet rattle raider ricket riddle ridge roaster rocket rookie rooted roster ruder sadder saddle saddler sallow salon saloon
    sandal scissor screw setter settle shallow sherry shopper shove shoved shoulder shower shred skilled slider smitten snider sower
    spicer spicy spiker spinner spite squirt stapler straw suckling sweater tablet tackle tactic taster tattle teether temper thicken
    tiger timber tinder toasted toffee toiled toiler tolled tower trumped tureen turnip valet violet viola wallow walled waller washed washing
    waster watched water wattle wetter whistle whale widow willow winder windows wizard wonder""")

KINDS = {
    "animal": "animal, creature, beast, living creature, critter",
    "alive": "living thing, living being, living organism, organism, being, life form, lifeform",
    "-alive": "inanimate object, nonliving thing, non-living thing, nonliving object, non-living object",
    "mammal": "mammal", "bird": "bird, fowl", "fish": "fish", "reptile": "reptile", "amphibian": "amphibian",
    "insect": "insect, bug", "pet": "pet, house pet", "farm_animal": "farm animal, livestock",
    "carnivore": "carnivore, predator, meat eater",
    "person": "human, person, man, woman, human being, people, boy, girl, child, baby, kid",
    "plant": "plant", "flower": "flower, blossom", "fruit": "fruit", "vegetable": "vegetable, veggie, veg",
    "food": "food, foodstuff, food item, something to eat", "drink": "drink, beverage", "liquid": "liquid, fluid",
    "vehicle": "vehicle, means of transport, means of transportation, mode of transport, mode of transportation",
    "tool": "tool", "toy": "toy, plaything", "furniture": "furniture, furnishing",
    "clothing": "clothing, clothes, garment, apparel, article of clothing", "jewelry": "jewelry, jewellery",
    "instrument": "musical instrument, instrument", "appliance": "appliance, household appliance, kitchen appliance",
    "electronic": "electronic device, electronic, electronics", "machine": "machine",
    "body_part": "body part, part of body, part of human body, organ", "building": "building",
    "structure": "structure", "container": "container, vessel", "utensil": "utensil, cutlery, silverware",
    "weapon": "weapon", "landform": "landform", "celestial": "celestial body, heavenly body",
    "weather": "weather", "place": "place, location", "man_made": "artifact, manufactured product",
    "indoors": "household item, household object", "physical": "object, thing, item, physical object, solid object",
}  # fmt: skip

# Words for a kind of thing about which the table says nothing: never a guess of something else.
VAGUE = word_set("""accessory artwork brand canine collection cookware crockery delicacy dessert device dish dishware feline gadget
    game group herbivore hobby ingredient invention luxury material meal necessity noun omnivore pair pest product
    resource rodent set snack source spice stationery staple substance symbol timepiece toiletry treat word breakfast
    lunch dinner metal one type equipment part surface shape colour color size sport natural decoration""")

ADJECTIVES = {
    "alive": "alive, living, animate, animated", "-alive": "inanimate, nonliving, non-living, dead, lifeless",
    "animal": "animal", "plant": "plant", "edible": "edible, eatable, eaten", "natural": "natural, organic",
    "man_made": "man-made, manmade, artificial, manufactured, human-made, handmade, made by human, made by man, made by people, made by person",
    "wild": "wild", "round": "round, circular, spherical, ball-shaped", "flat": "flat", "long": "long",
    "rectangular": "rectangular, square, box-shaped", "hollow": "hollow", "sharp": "sharp, pointy, pointed",
    "soft": "soft, fluffy, squishy, cuddly", "hard": "hard, solid, rigid", "hot": "hot", "cold": "cold", "wet": "wet",
    "fragile": "fragile, breakable, delicate", "shiny": "shiny, reflective", "transparent": "transparent, see-through, clear",
    "flexible": "flexible, bendable", "sweet": "sweet", "sour": "sour", "salty": "salty", "juicy": "juicy",
    "flammable": "flammable", "red": "red", "orange": "orange", "yellow": "yellow", "green": "green", "blue": "blue",
    "white": "white", "black": "black", "brown": "brown", "grey": "grey, gray, silver", "pink": "pink",
    "purple": "purple, violet", "worn": "worn, worn on body, wearable", "ridden": "ridden, driven",
    "loud": "loud, noisy", "-loud": "quiet, silent", "dangerous": "dangerous, deadly, harmful", "-dangerous": "safe, harmless",
    "expensive": "expensive, costly", "-expensive": "cheap, inexpensive", "electric": "electric, electrical, electrically powered, powered by electricity",
    "electronic": "electronic", "battery": "battery powered, battery-powered, powered by battery", "fur": "furry, hairy",
    "metal": "metal, metallic", "wood": "wooden, wood", "plastic": "plastic", "glass": "glass", "paper": "paper",
    "ceramic": "ceramic", "#big": "big, large, huge, giant, enormous, gigantic", "#small": "small, tiny, little, miniature",
    "#heavy": "heavy", "#light": "light, lightweight", "#tall": "tall, high", "#portable": "portable, carried, movable",
    "physical": "real, physical, tangible, visible", "sound": "musical", "eats": "hungry", "carnivore": "carnivorous",
    "indoors": "indoors, inside, indoor", "outdoors": "outdoors, outside, outdoor", "farm_animal": "domesticated",
    "person": "human", "liquid": "liquid", "place": "place", "food": "food", "drink": "drunk", "children": "played with",
    "read": "read", "play": "played, playable", "body_part": "part of body, part of human body, inside body",
    "pet": "kept as pet, pet", "house": "household",
}  # fmt: skip

PARTS = {
    "legs": "leg, limb, multiple leg, multiple limb", "four_legs": "four leg, 4 leg, exactly four leg, four paw",
    "two_legs": "two leg, 2 leg, exactly two leg", "wings": "wing", "tail": "tail", "fur": "fur, hair, furry coat",
    "feathers": "feather", "scales": "scale", "horns": "horn, antler", "beak": "beak, bill", "trunk": "trunk",
    "shell": "shell", "eyes": "eye", "ears": "ear", "nose": "nose", "mouth": "mouth", "teeth": "tooth, fang",
    "head": "head", "face": "face", "arms": "arm", "hands": "hand", "feet": "foot, paw", "skin": "skin, peel",
    "bones": "bone, skeleton, spine", "blood": "blood, heart", "brain": "brain, mind", "wheels": "wheel, tire, tyre",
    "engine": "engine, motor", "handle": "handle", "buttons": "button", "screen": "screen, display", "pages": "page",
    "blade": "blade", "strings": "string", "leaves": "leaf", "roots": "root", "seeds": "seed",
    "thorns": "thorn, spike", "lid": "lid, cap", "door": "door", "windows": "window", "keys": "key", "seat": "seat",
    "moving_parts": "moving part", "smell": "smell, scent, odor", "animal": "stomach, lung, belly, muscle, tongue",
    "sharp": "sharp edge, sharp point, sharp blade", "battery": "battery", "electric": "plug",
    "sweet": "sweet taste", "sour": "sour taste", "metal": "metal", "wood": "wood", "glass": "glass", "round": "round shape",
    "alive": "life",
}  # fmt: skip

MATERIALS = {
    "metal": "metal, steel, iron, aluminum, aluminium", "wood": "wood", "plastic": "plastic", "glass": "glass",
    "cloth": "cloth, fabric, cotton, textile, wool", "paper": "paper, cardboard", "leather": "leather",
    "rubber": "rubber", "stone": "stone, rock, brick, concrete", "ceramic": "ceramic, clay, porcelain",
}  # fmt: skip

PLACES = {
    "house": "house, home, household", "kitchen": "kitchen", "bathroom": "bathroom", "bedroom": "bedroom",
    "living_room": "living room", "garage": "garage, shed, toolbox, workshop", "garden": "garden, yard, backyard",
    "outdoors": "outdoors, outside, outdoor", "indoors": "indoors, inside, building, inside house, indoor",
    "office": "office, desk", "school": "school, classroom", "store_bought": "store, shop, market, supermarket",
    "farm": "farm", "forest": "forest, wood, jungle", "water": "water, river, lake, pond, underwater",
    "ocean": "ocean, sea", "sky": "sky, air", "restaurant": "restaurant", "hospital": "hospital", "zoo": "zoo",
    "street": "street, road, city, town", "park": "park", "space": "space, outer space", "desert": "desert",
    "beach": "beach", "wild": "wild, wilderness", "body_part": "body, human body", "natural": "nature",
}  # fmt: skip

DOES = {
    "fly": "fly, fly in sky, fly in air", "one_hand": "fit in hand, fit in one hand", "#pocket": "fit in pocket", "swim": "swim", "moves": "move, move around, move by itself, move on own", "walks": "walk", "runs": "run", "jumps": "jump, hop",
    "climbs": "climb", "sound": "make sound, make noise, produce sound, sound", "loud": "make loud noise, make loud sound",
    "bites": "bite, sting", "electric": "use electricity, need electricity, need electricity to work, run on electricity, need power, require electricity, plug in, work with electricity, use power",
    "battery": "use battery, need battery, run on battery", "fuel": "use fuel, need fuel, run on fuel, use gas, run on gas, use gasoline",
    "grows": "grow, grow in ground", "tree": "grow on tree", "eats": "eat, eat food", "carnivore": "eat meat, hunt", "breathes": "breathe",
    "lays_eggs": "lay egg", "melts": "melt", "floats": "float, float on water", "sees": "see", "thinks": "think, feel",
    "talks": "talk, speak", "smell": "smell, have smell", "sweet": "taste sweet", "sour": "taste sour", "salty": "taste salty",
    "water": "live in water, live underwater, live in river", "ocean": "live in ocean, live in sea", "farm": "live on farm", "forest": "live in forest, live in jungle",
    "wild": "live in wild, live in nature", "house": "live in house, belong in house", "outdoors": "live outside, live outdoors", "desert": "live in desert",
    "gives_light": "give light, give off light, produce light, emit light, light up, glow, shine", "hot": "get hot, become hot",
    "heats": "give heat, give off heat, produce heat, heat", "keeps_warm": "keep warm", "tell_time": "tell time, show time",
    "transport": "carry people, carry person, transport people, carry passenger", "cut": "cut", "fragile": "break easily", "opens": "open",
    "folds": "fold", "dangerous": "hurt people, harm people, hurt you, hurt person", "alive": "live, get angry, sleep, die, drink, have feeling", "music": "make music, play music",
    "hold_liquid": "hold water, hold liquid, contain water, contain liquid", "store": "hold thing, store thing, contain thing",
    "wheels": "roll", "flammable": "burn, burn easily", "expensive": "cost lot, cost lot of money",
}  # fmt: skip

DONE = {
    "edible": "eat, eaten, eating, eat as food", "drink": "drink, drunk, drinking", "worn": "wear, worn, wearing, put on, wear on body, worn on body",
    "ridden": "ride, ridden, drive, driven, riding, driving, ride in, ride on", "eat_with": "eat with, drink from, drink out of, eating with, eating food",
    "cook": "cook, cooking, cook with, cook food, cooking food, prepare food, preparing food, bake",
    "write": "write, writing, write with, draw, drawing, draw with", "cut": "cut, cutting, cut thing, cut with, cutting thing",
    "play": "play, played, playing, play with, played with, playing with, play with for fun", "music": "play music, make music, making music, play music on, listen to music, musician use",
    "sport": "play sport, sport, playing sport", "sit": "sit, sit on, sitting, sitting on, sit in", "sleep": "sleep, sleep on, sleep in, sleeping, sleeping on",
    "clean": "clean, cleaning, clean with, cleaning thing, clean thing, wash thing", "hygiene": "wash, wash yourself, washing, bathing, personal hygiene, hygiene, grooming, wash with",
    "read": "read, reading", "communicate": "communicate, communication, talk to people, communicate with, communicating, talk with", "tell_time": "tell time, telling time",
    "gives_light": "light, lighting, light room, see in dark", "heats": "heat, heating", "transport": "transport, transportation, travel, travelling, traveling, get around, travel in, get from place to place",
    "store": "store, storage, storing, put thing in, keep thing in, store thing in, carry thing, hold thing, storing thing",
    "hold_liquid": "put water in, hold water, hold liquid, drink water from", "pay": "buy thing, pay, pay with, keep money in, buy thing with", "work": "work, working, work with",
    "decoration": "decorate, decoration, decorating", "repair": "build, building, repair, fix, fixing, construction, build with, repairing, build thing, fix thing",
    "protection": "protect, protection", "keeps_warm": "keep warm, warmth, stay warm, keep you warm, keeping warm", "entertainment": "entertainment, fun, have fun", "learn": "learn, learning, education, study, learn from",
    "watch": "watch", "store_bought": "buy, purchase, buy in store, bought", "one_hand": "hold in one hand, hold in hand, hold with one hand, fit in hand, pick up with one hand, held in one hand, held in hand",
    "#portable": "carry, lift, pick up, carry around, carry with me, move, carry in bag, carry with you, hold", "#pocket": "fit in pocket, put in pocket, carry in pocket",
    "opens": "open", "folds": "fold", "physical": "see", "sky": "see in sky", "sound": "hear", "smell": "smell", "grows": "grow",
    "children": "child play with, child use, kid play with, kid use", "house": "keep at home, have at home", "pet": "keep as pet, have as pet", "daily": "use every day, use daily, used every day, used daily",
    "fragile": "break, break easily",
}  # fmt: skip

NEUTRAL = word_set(
    "standard plain everyday usual mere basic generic proper humble average traditional classic conventional regular real normal ordinary typical common single actual good nice simple kind type"
)

SMALL = word_set("""a an the it its it's be is are was were been being of to for in on with by as that which who you your my our their people
    person something someone anything somebody one i we they them usually typically commonly often normally generally mostly
    mainly primarily sometimes always ever can could would will may might do does did used use uses useful kind type sort
    piece item form any some very really actually also there at from into found find kept made out so just too this these
    those human humans most everyday day object thing and has have having got considered known called located seen
    specific object's only quite around live lives stored designed meant get""")

# Words that turn what was found into something else: then it is better not to answer.
TWISTS = word_set("without except only other instead unlike than rather never more less half all same different enough")

# Usual length in metres and weight in kilograms of things that questions compare with.
REFERENCES = {
    "person": (1.75, 70.0), "human": (1.75, 70.0), "man": (1.8, 80.0), "woman": (1.65, 65.0), "child": (1.2, 25.0),
    "baby": (0.5, 4.0), "breadbox": (0.4, 3.0), "bread box": (0.4, 3.0), "loaf of bread": (0.3, 0.5), "shoebox": (0.35, 1.0),
    "shoe box": (0.35, 1.0), "brick": (0.2, 2.5), "football": (0.22, 0.43), "basketball": (0.24, 0.6), "soccer ball": (0.22, 0.43),
    "tennis ball": (0.067, 0.06), "hand": (0.19, 0.4), "your hand": (0.19, 0.4), "finger": (0.08, 0.05), "fist": (0.1, 0.4),
    "penny": (0.019, 0.003), "suitcase": (0.7, 4.0), "backpack": (0.5, 1.0), "adult": (1.75, 75.0), "human being": (1.75, 70.0),
    "desk": (1.4, 25.0), "room": (4.0, 5000.0), "laptop": (0.35, 2.0), "me": (1.75, 70.0), "you": (1.75, 70.0),
}  # fmt: skip


def _phrases(table: Mapping[str, str]) -> Phrases:
    """A table the other way round: from the words of a phrase to the attribute."""
    return {tuple(phrase.split()): attribute for attribute, text in table.items() for phrase in text.split(", ")}


KIND_PHRASES = _phrases(KINDS)
ADJECTIVE_PHRASES = _phrases(ADJECTIVES)
PART_PHRASES = _phrases(PARTS)
MATERIAL_PHRASES = _phrases(MATERIALS)
PLACE_PHRASES = _phrases(PLACES)
DOES_PHRASES = _phrases(DOES)
DONE_PHRASES = _phrases(DONE)
